package test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// upstreamCorefile is a resolver that knows two names, by IPv4, and denies all
// others.
const upstreamCorefile = `.:{PORT1} {
	bind 127.0.0.1
	errors
	template IN A external.test {
		match "^external[.]test[.]$"
		answer "external.test. 60 IN A 192.0.2.7"
		fallthrough
	}
	template IN A corp.example {
		match "^intranet[.]corp[.]example[.]$"
		answer "intranet.corp.example. 60 IN A 192.0.2.8"
		fallthrough
	}
	template ANY ANY {
		rcode NXDOMAIN
		authority ". 60 IN SOA a. b. 1 7200 900 1209600 60"
	}
}`

func TestKubernetesCorefileServesACluster(t *testing.T) {
	upstream := startServer(t, upstreamCorefile)
	// The API server and the node's resolver are what the moved Corefile asks
	// in the place of what a pod finds; see moves for all else that is moved.
	m := &move{t: t, resolvConf: upstream.addr(), kubernetes: startKubeAPI(t)}
	// With a domain of the reader's own.
	startServer(t, m.corefile(strings.Replace(kubernetesCorefile(t), "searchexpand {", "searchexpand corp.example {", 1)))

	waitFor(t, startLimit, "ready", func() error {
		return httpOK("http://" + m.addr("8181") + "/ready")
	})
	if err := httpOK("http://" + m.addr("8080") + "/health"); err != nil {
		t.Error(err)
	}
	if err := httpOK("http://" + m.addr("9153") + "/metrics"); err != nil {
		t.Error(err)
	}

	answers := map[string]struct{ name, want string }{
		"a service":                            {"db.default.svc.cluster.local.", "db.default.svc.cluster.local. A 10.96.0.42"},
		"an endpoint of a headless service":    {"web-0.web.default.svc.cluster.local.", "web-0.web.default.svc.cluster.local. A 10.244.0.7"},
		"a service that is not there":          {"no.default.svc.cluster.local.", "NXDOMAIN"},
		"a name outside, from the upstream":    {"external.test.", "external.test. A 192.0.2.7"},
		"a bare name, completed, from outside": {"intranet.", "intranet. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8"},
		"a name outside, as a pod asks first": {
			"intranet.corp.example.default.svc.cluster.local.",
			"intranet.corp.example.default.svc.cluster.local. CNAME intranet.corp.example. intranet.corp.example. A 192.0.2.8",
		},
		"a bare name that nobody knows": {"nobody.", "NXDOMAIN"},
	}
	for name, tc := range answers {
		t.Run(name, func(t *testing.T) {
			if got := answerText(ask(t, m.addr("53"), tc.name, dns.TypeA)); got != tc.want {
				t.Errorf("%s A = %q, want %q", tc.name, got, tc.want)
			}
		})
	}
}

// kubernetesCorefile reads the Corefile of a cluster.
func kubernetesCorefile(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("../build/kubernetes/components/steadfast/Corefile")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shippedSearch is what stands there of searchexpand.
const shippedSearch = "    searchexpand {\n       trigger namespace svc.cluster.local\n    }\n"

// answerText writes a reply's answer section in one line, without TTLs, or its
// rcode if it has none.
func answerText(reply *dns.Msg) string {
	if len(reply.Answer) == 0 {
		return dns.RcodeToString[reply.Rcode]
	}
	var words []string
	for _, rr := range reply.Answer {
		h := rr.Header()
		words = append(words, h.Name, dns.TypeToString[h.Rrtype], strings.TrimPrefix(rr.String(), h.String()))
	}
	return strings.Join(words, " ")
}

// httpOK returns an error unless url is answered with 200.
func httpOK(url string) error {
	_, err := httpGet(url)
	return err
}

// httpGet returns what url is answered with, or an error unless that is with 200.
func httpGet(url string) (string, error) {
	response, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return string(body), err
}
