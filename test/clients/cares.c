/* addrinfo.c with c-ares, the resolver of Node.js, curl and Envoy. The codes are
 * those of c-ares. */
#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>

struct question {
	const char *name, *family;
};

static void print_address(const struct sockaddr *addr)
{
	char text[INET6_ADDRSTRLEN];
	const void *bytes = addr->sa_family == AF_INET
		? (const void *)&((const struct sockaddr_in *)addr)->sin_addr
		: (const void *)&((const struct sockaddr_in6 *)addr)->sin6_addr;
	printf(" %s", inet_ntop(addr->sa_family, bytes, text, sizeof text));
}

static void answered(void *arg, int status, int timeouts, struct ares_addrinfo *found)
{
	const struct question *q = arg;
	(void)timeouts;
	printf("%s %s %d", q->name, q->family, status);
	if (status != ARES_SUCCESS) {
		printf(" -\n");
		return;
	}
	/* The canonical name is where the chain of aliases ends. */
	const char *canonical = found->name;
	for (struct ares_addrinfo_cname *each = found->cnames; each; each = each->next)
		canonical = each->name;
	printf(" %s", canonical ? canonical : "-");
	for (struct ares_addrinfo_node *each = found->nodes; each; each = each->ai_next)
		print_address(each->ai_addr);
	printf("\n");
	ares_freeaddrinfo(found);
}

static void wait_for_answer(ares_channel channel)
{
	for (;;) {
		fd_set readable, writable;
		struct timeval timeout;
		FD_ZERO(&readable);
		FD_ZERO(&writable);
		int n = ares_fds(channel, &readable, &writable);
		if (n == 0)
			return;
		select(n, &readable, &writable, NULL, ares_timeout(channel, NULL, &timeout));
		ares_process(channel, &readable, &writable);
	}
}

int main(int argc, char **argv)
{
	static const struct { const char *name; int number; } families[] = {
		{"ip", AF_UNSPEC}, {"ip4", AF_INET}, {"ip6", AF_INET6},
	};
	ares_channel channel;
	if (ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS || ares_init(&channel) != ARES_SUCCESS)
		return 1;
	for (int i = 1; i < argc; i++) {
		for (int f = 0; f < 3; f++) {
			struct question q = {argv[i], families[f].name};
			struct ares_addrinfo_hints hints;
			memset(&hints, 0, sizeof hints);
			hints.ai_family = families[f].number;
			hints.ai_socktype = SOCK_STREAM;
			hints.ai_flags = ARES_AI_CANONNAME;
			ares_getaddrinfo(channel, q.name, NULL, &hints, answered, &q);
			wait_for_answer(channel);
		}
	}
	ares_destroy(channel);
	ares_library_cleanup();
	return 0;
}
