package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// clusterBlocks are server blocks with the kubernetes plugin, and with pods at 127.0.0.1
// in the namespace default and at 127.0.0.9 in prod; see kubeObjects.
const clusterBlocks = `.:{PORT1} {
	bind 127.0.0.1
	metadata
	searchexpand {kubernetes/client-namespace}.svc.cluster.local corp.example
	cache 30
	kubernetes cluster.local {
		endpoint {API}
		pods verified
	}
	forward . {UP}
}
.:{PORT2} {
	bind 127.0.0.1
	searchexpand @kubernetes {
		trigger first
		except_client 127.0.0.8
	}
	searchexpand corp.example
	cache 30
	kubernetes cluster.local {
		endpoint {API}
		pods verified
	}
	forward . {UP}
}
.:{PORT3} {
	bind 127.0.0.1
	searchexpand {
		trigger namespace svc.cluster.local
	}
	cache 30
	kubernetes cluster.local {
		endpoint {API}
	}
	forward . {UP}
}
.:{PORT4} {
	bind 127.0.0.1
	autopath @kubernetes
	cache 30
	kubernetes cluster.local {
		endpoint {API}
		pods verified
	}
	forward . {UP}
}`

// What stands in front of these in a name that a pod has completed.
const (
	inDefault = ".default.svc.cluster.local"
	inProd    = ".prod.svc.cluster.local"
)

// clusterAnswers is who asks for what, by A, and what each block says. A list is a
// client's own whatever another has asked for before.
var clusterAnswers = []struct {
	port, client, name, want string
}{
	{"PORT1", "127.0.0.1", "db", "db. CNAME db.default.svc.cluster.local. db.default.svc.cluster.local. A 10.96.0.42"},
	{"PORT1", "127.0.0.9", "db", "db. CNAME db.prod.svc.cluster.local. db.prod.svc.cluster.local. A 10.96.0.43"},
	{"PORT1", "127.0.0.5", "db", "NXDOMAIN"}, // nobody's pod
	{"PORT1", "127.0.0.5", "intranet", "intranet. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8"},
	{"PORT1", "127.0.0.1", "intranet", "intranet. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8"},

	{"PORT2", "127.0.0.1", "db", "db. CNAME db.default.svc.cluster.local. db.default.svc.cluster.local. A 10.96.0.42"},
	{"PORT2", "127.0.0.9", "db", "db. CNAME db.prod.svc.cluster.local. db.prod.svc.cluster.local. A 10.96.0.43"},
	{"PORT2", "127.0.0.8", "db", "NXDOMAIN"}, // left out
	{"PORT2", "127.0.0.8", "intranet", "intranet. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8"},
	{"PORT2", "127.0.0.1", "intranet.corp.example" + inDefault, "intranet.corp.example.default.svc.cluster.local. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8"},
	{"PORT2", "127.0.0.9", "intranet.corp.example" + inDefault, "NXDOMAIN"}, // another's first domain
	{"PORT2", "127.0.0.9", "intranet.corp.example" + inProd, "intranet.corp.example.prod.svc.cluster.local. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8"},
	{"PORT2", "127.0.0.1", "db.prod" + inDefault, "db.prod.default.svc.cluster.local. CNAME db.prod.svc.cluster.local. db.prod.svc.cluster.local. A 10.96.0.43"},

	{"PORT3", "127.0.0.5", "intranet.corp.example" + inDefault, "intranet.corp.example.default.svc.cluster.local. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8"},
	{"PORT3", "127.0.0.9", "intranet.corp.example" + inDefault, "intranet.corp.example.default.svc.cluster.local. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8"},
	{"PORT3", "127.0.0.5", "intranet.corp.example.com.svc.cluster.local", "NXDOMAIN"}, // no namespace com
	{"PORT3", "127.0.0.5", "nobody.corp.example" + inDefault, "NXDOMAIN"},
	{"PORT3", "127.0.0.5", "db.prod" + inDefault, "db.prod.default.svc.cluster.local. CNAME db.prod.svc.cluster.local. db.prod.svc.cluster.local. A 10.96.0.43"},
	{"PORT3", "127.0.0.5", "db.prod.svc" + inDefault, "db.prod.svc.default.svc.cluster.local. CNAME db.prod.svc.cluster.local. db.prod.svc.cluster.local. A 10.96.0.43"},
	{"PORT3", "127.0.0.5", "db.prod.svc.cluster.local" + inDefault, "db.prod.svc.cluster.local.default.svc.cluster.local. CNAME db.prod.svc.cluster.local. db.prod.svc.cluster.local. A 10.96.0.43"},
	{"PORT3", "127.0.0.5", "web-0.web" + inDefault, "web-0.web.default.svc.cluster.local. A 10.244.0.7"},
	{"PORT3", "127.0.0.5", "web-1.web" + inDefault, "NXDOMAIN"}, // an endpoint that is gone
	{"PORT3", "127.0.0.5", "db" + inDefault, "db.default.svc.cluster.local. A 10.96.0.42"},
	{"PORT3", "127.0.0.5", "no" + inDefault, "NXDOMAIN"},
	{"PORT3", "127.0.0.5", "intranet", "NXDOMAIN"}, // bare names are not for this block
}

func TestListsByClientInACluster(t *testing.T) {
	t.Parallel()
	upstream := startServer(t, strings.Replace(upstreamCorefile, "errors", "errors\n\tlog . \"asked {name} {type}\"", 1))
	s := startServer(t, strings.NewReplacer("{API}", startKubeAPI(t), "{UP}", upstream.addr()).Replace(clusterBlocks))
	for round := range 2 { // the second time from the caches and what is pinned
		for _, row := range clusterAnswers {
			if got := answerText(askFrom(t, row.client, s.addrOf(row.port), row.name, dns.TypeA)); got != row.want {
				t.Errorf("round %d: %s asks %s for %s: %s, want %s", round, row.client, row.port, row.name, got, row.want)
			}
		}
	}
	asked := (&zoneServer{upstream}).asked()
	for _, never := range []string{"web-1.web. A", "db.prod. A", "db. A"} {
		if slices.Contains(asked, never) {
			t.Errorf("asked upstream for %s", never)
		}
	}

	both := askFrom(t, "127.0.0.5", s.addrOf("PORT3"), "intranet.corp.example"+inDefault, dns.TypeAAAA)
	denied := askFrom(t, "127.0.0.5", s.addrOf("PORT3"), "nobody.corp.example"+inDefault, dns.TypeAAAA)
	for _, reply := range []*dns.Msg{both, denied} {
		if len(reply.Ns) != 1 || reply.Ns[0].Header().Name != "cluster.local." {
			t.Errorf("denied with %v, want the SOA of cluster.local", reply.Ns)
		}
	}
	if both.Rcode != dns.RcodeSuccess || denied.Rcode != dns.RcodeNameError {
		t.Errorf("AAAA: %d of what has A, %d of what is not there", both.Rcode, denied.Rcode)
	}
}

// TestTriggerFirstBesideAutopathInACluster: with the list that the kubernetes plugin has
// for a pod, both say the same, but for what stock autopath gets wrong.
func TestTriggerFirstBesideAutopathInACluster(t *testing.T) {
	t.Parallel()
	upstream := startServer(t, upstreamCorefile)
	s := startServer(t, strings.NewReplacer("{API}", startKubeAPI(t), "{UP}", upstream.addr()).Replace(clusterBlocks))
	for _, name := range []string{
		"db", "no", "db.prod", "db.prod.svc", "web-0.web", "intranet.corp.example", "nobody.corp.example", "db.default.svc.cluster.local", "wpad",
	} {
		ours, stock := ask(t, s.addrOf("PORT2"), name+inDefault, dns.TypeA), ask(t, s.addrOf("PORT4"), name+inDefault, dns.TypeA)
		if answerText(ours) != answerText(stock) {
			t.Errorf("%s: %s, stock says %s", name, answerText(ours), answerText(stock))
		}
	}
	// The upstream denies a name of one family when it is asked for the other.
	ours := ask(t, s.addrOf("PORT2"), "intranet.corp.example"+inDefault, dns.TypeAAAA)
	stock := ask(t, s.addrOf("PORT4"), "intranet.corp.example"+inDefault, dns.TypeAAAA)
	if ours.Rcode != dns.RcodeSuccess || stock.Rcode != dns.RcodeNameError {
		t.Errorf("AAAA of a name that has A: %v, stock says %v", ours, stock)
	}
	if reply := ask(t, s.addrOf("PORT4"), inDefault[1:], dns.TypeA); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("stock autopath no longer fails for the first domain itself: %v", reply)
	}
	if reply := ask(t, s.addrOf("PORT2"), inDefault[1:], dns.TypeA); reply.Rcode != dns.RcodeSuccess {
		t.Errorf("the first domain itself: %v", reply)
	}
}

func TestWhatAListNeedsIsSaidAtStart(t *testing.T) {
	t.Parallel()
	for block, want := range map[string]string{
		"searchexpand {kubernetes/client-namespace}.svc.cluster.local": "{kubernetes/client-namespace}.svc.cluster.local. needs the metadata plugin",
		"searchexpand @kubernetes":                                     "@kubernetes is not a plugin of the same server block",
		"searchexpand @cache\n cache":                                  "@cache has no search lists",
		"searchexpand a.test\n searchexpand b.test":                    "stanza 2: no query gets to it",
		"searchexpand a.test {\n client 10.0.0.1/8\n }":                "client: \"10.0.0.1/8\"",
		"searchexpand a.test {\n trigger namespace local\n}":           "trigger: \"local\"",
	} {
		text, _ := withPorts(t, fmt.Sprintf(".:{PORT1} {\n bind 127.0.0.1\n %s\n}", block))
		dir := t.TempDir()
		p := startProcess(t, "coredns", dir, "-conf", writeFile(t, dir, "Corefile", text))
		if !p.ended(startLimit) || !strings.Contains(p.Log(), want) {
			t.Errorf("%s: want it to end with %q, get\n%s", block, want, p.Log())
		}
	}
}
