/* Looks names up as every C program does, by getaddrinfo. For each name and each
 * address family it prints one line:
 *
 *     NAME FAMILY CODE CANONICAL ADDRESS...
 *
 * with the code that getaddrinfo returned and "-" for no canonical name. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static void print_address(const struct sockaddr *addr)
{
	char text[INET6_ADDRSTRLEN];
	const void *bytes = addr->sa_family == AF_INET
		? (const void *)&((const struct sockaddr_in *)addr)->sin_addr
		: (const void *)&((const struct sockaddr_in6 *)addr)->sin6_addr;
	printf(" %s", inet_ntop(addr->sa_family, bytes, text, sizeof text));
}

static void look_up(const char *name, const char *family, int number)
{
	struct addrinfo hints, *found = NULL;
	memset(&hints, 0, sizeof hints);
	hints.ai_family = number;
	hints.ai_socktype = SOCK_STREAM;
	hints.ai_flags = AI_CANONNAME;
	int code = getaddrinfo(name, NULL, &hints, &found);
	printf("%s %s %d", name, family, code);
	if (code != 0) {
		printf(" -\n");
		return;
	}
	printf(" %s", found->ai_canonname ? found->ai_canonname : "-");
	for (struct addrinfo *each = found; each; each = each->ai_next)
		print_address(each->ai_addr);
	printf("\n");
	freeaddrinfo(found);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		look_up(argv[i], "ip", AF_UNSPEC);
		look_up(argv[i], "ip4", AF_INET);
		look_up(argv[i], "ip6", AF_INET6);
	}
	return 0;
}
