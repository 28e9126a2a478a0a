# Gives this node the addresses at which its cache listens, and keeps their packets
# out of connection tracking, or takes all that away again. Either may be done twice.
#
#   sh addresses.sh add|remove
set -eu
link=nodelocaldns
addresses="169.254.20.10 $KUBE_DNS_SERVICE_HOST"

# rule TABLE CHAIN MATCH...: one rule is there once, or not at all.
rule() {
	table=$1 chain=$2
	shift 2
	if [ "$action" = add ]; then
		iptables -w 30 -t "$table" -C "$chain" "$@" 2>/dev/null || iptables -w 30 -t "$table" -I "$chain" "$@"
	else
		while iptables -w 30 -t "$table" -C "$chain" "$@" 2>/dev/null; do
			iptables -w 30 -t "$table" -D "$chain" "$@"
		done
	fi
}

rules() {
	for address in $addresses; do
		for protocol in udp tcp; do
			rule raw PREROUTING -d "$address" -p "$protocol" --dport 53 -j NOTRACK
			rule raw OUTPUT -d "$address" -p "$protocol" --dport 53 -j NOTRACK
			rule raw OUTPUT -s "$address" -p "$protocol" --sport 53 -j NOTRACK
			# What is not tracked is not let through as part of a connection.
			rule filter INPUT -d "$address" -p "$protocol" --dport 53 -j ACCEPT
			rule filter OUTPUT -s "$address" -p "$protocol" --sport 53 -j ACCEPT
		done
	done
}

action=$1
case $action in
add)
	# A bridge without ports does as well, where the kernel has no dummy.
	ip link show "$link" >/dev/null 2>&1 || ip link add "$link" type dummy 2>/dev/null || ip link add "$link" type bridge
	ip link set "$link" up
	for address in $addresses; do
		ip address replace "$address/32" dev "$link"
	done
	rules
	;;
remove)
	# First the rules: what is tracked from then on goes to the Service when the
	# addresses are gone.
	rules
	! ip link show "$link" >/dev/null 2>&1 || ip link delete "$link"
	;;
*)
	echo "usage: addresses.sh add|remove" >&2
	exit 1
	;;
esac
