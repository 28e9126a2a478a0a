package searchexpand

import "github.com/miekg/dns"

// maxNameOctets is the size of the longest name a message can carry, with the
// root label (RFC 1035, section 2.3.4).
const maxNameOctets = 255

// root is the entry of a search list that stands for the name as it is.
const root = "."

// candidate is a name to ask for in place of the name asked.
type candidate struct {
	name string // fully qualified; the asked part is spelled as it was asked
	domain
	asked bool // it is the name asked itself: it needs no alias, and what it says is never kept back
	gate  gate // what it is asked for if it is no name to be found
}

// candidates returns what to try for name, in order. The name is fully
// qualified, and so are the domains of the list. Where the list holds the root, the
// name goes out as it is; without it a dotted name does so last and a dotless
// one never, because it would leak to the root servers. What is too long to be
// sent is left out: it cannot exist. See DESIGN.md, D3.
func candidates(name string, domains []domain) []candidate {
	tries := make([]candidate, 0, len(domains)+3) // the name as it is and two gates
	octets := wireOctets(name)
	asIs := candidate{name: name, domain: domain{suffix: root, entry: root}}
	placed := false
	for _, d := range domains {
		if d.suffix == root {
			tries = append(tries, asIs)
			placed = true
			continue
		}
		// Both lengths count the root label; joined, the name has one. A label
		// cannot grow by joining, so its own limit needs no look.
		if octets-1+wireOctets(d.suffix) > maxNameOctets {
			continue
		}
		tries = append(tries, candidate{name: name + d.suffix, domain: d})
	}
	if !placed && dots(name) > 0 {
		tries = append(tries, asIs)
	}
	return tries
}

// dots counts the dots of a fully qualified name as ndots does: those between
// labels. The closing one and those inside a label do not count.
func dots(name string) int { return dns.CountLabel(name) - 1 }

// wireOctets returns how many octets a fully qualified name takes in a message
// (RFC 1035, section 3.1). An escape, \. or \046, is one octet.
func wireOctets(name string) int {
	if name == root {
		return 1
	}
	octets := 1 // the length octet of the first label; each dot stands for the next one's
	for i := 0; i < len(name); i++ {
		if name[i] == '\\' {
			if i+3 < len(name) && isDigit(name[i+1]) && isDigit(name[i+2]) && isDigit(name[i+3]) {
				i += 2
			}
			i++
		}
		octets++
	}
	return octets
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }
