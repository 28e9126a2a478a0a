# addrinfo.c in Python. The codes are those of the C library.
import socket
import sys

FAMILIES = {"ip": socket.AF_UNSPEC, "ip4": socket.AF_INET, "ip6": socket.AF_INET6}

for name in sys.argv[1:]:
    for family, number in FAMILIES.items():
        try:
            found = socket.getaddrinfo(name, None, number, socket.SOCK_STREAM, 0, socket.AI_CANONNAME)
        except socket.gaierror as error:
            print(name, family, error.errno, "-")
            continue
        print(name, family, 0, found[0][3] or "-", *(entry[4][0] for entry in found))
