package test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// kubeObjects is what stands in the stand-in's cluster: path of a resource → its
// API version and kind, and the objects, as JSON without these two.
var kubeObjects = map[string]struct {
	apiVersion, kind string
	objects          []string
}{
	"/api/v1/namespaces": {"v1", "Namespace", []string{
		`"metadata":{"name":"default","uid":"n1","resourceVersion":"1"}`,
		`"metadata":{"name":"prod","uid":"n2","resourceVersion":"1"}`,
	}},
	"/api/v1/services": {"v1", "Service", []string{
		`"metadata":{"name":"db","namespace":"default","uid":"s1","resourceVersion":"2"},
		 "spec":{"type":"ClusterIP","clusterIP":"10.96.0.42","clusterIPs":["10.96.0.42"],"ports":[{"name":"sql","protocol":"TCP","port":5432}]}`,
		`"metadata":{"name":"db","namespace":"prod","uid":"s3","resourceVersion":"2"},
		 "spec":{"type":"ClusterIP","clusterIP":"10.96.0.43","clusterIPs":["10.96.0.43"],"ports":[{"name":"sql","protocol":"TCP","port":5432}]}`,
		`"metadata":{"name":"web","namespace":"default","uid":"s2","resourceVersion":"3"},
		 "spec":{"type":"ClusterIP","clusterIP":"None","clusterIPs":["None"],"ports":[{"name":"http","protocol":"TCP","port":80}]}`,
	}},
	"/apis/discovery.k8s.io/v1/endpointslices": {"discovery.k8s.io/v1", "EndpointSlice", []string{
		`"metadata":{"name":"web-x","namespace":"default","uid":"e1","resourceVersion":"4","labels":{"kubernetes.io/service-name":"web"}},
		 "addressType":"IPv4","ports":[{"name":"http","protocol":"TCP","port":80}],
		 "endpoints":[{"addresses":["10.244.0.7"],"hostname":"web-0","conditions":{"ready":true}}]`,
	}},
	// Addresses from which a test can ask.
	"/api/v1/pods": {"v1", "Pod", []string{
		`"metadata":{"name":"one","namespace":"default","uid":"p1","resourceVersion":"5"},"status":{"phase":"Running","podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}`,
		`"metadata":{"name":"two","namespace":"prod","uid":"p2","resourceVersion":"6"},"status":{"phase":"Running","podIP":"127.0.0.9","podIPs":[{"ip":"127.0.0.9"}]}`,
	}},
	"/api/v1/nodes": {"v1", "Node", nil},
}

// kubeVersion is the resourceVersion of the whole.
const kubeVersion = "10"

// startKubeAPI starts a stand-in for the Kubernetes API and returns its URL. It
// lists and watches kubeObjects, which never change, and answers in JSON, which
// every client must take. It knows both ways in which a client may begin: a list
// and then a watch, or a watch that sends the list first.
func startKubeAPI(t testing.TB) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(serveKubeAPI))
	t.Cleanup(func() {
		api.CloseClientConnections() // a watch ends no other way
		api.Close()
	})
	return api.URL
}

func serveKubeAPI(w http.ResponseWriter, r *http.Request) {
	resource, ok := kubeObjects[r.URL.Path]
	if !ok || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	typeMeta := fmt.Sprintf(`"apiVersion":%q,"kind":%q`, resource.apiVersion, resource.kind)
	query := r.URL.Query()
	if query.Get("watch") == "" {
		var items []string
		for _, object := range resource.objects {
			items = append(items, "{"+object+"}")
		}
		fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":%q},"items":[%s]}`,
			resource.apiVersion, resource.kind, kubeVersion, strings.Join(items, ","))
		return
	}
	if query.Get("sendInitialEvents") == "true" {
		for _, object := range resource.objects {
			fmt.Fprintf(w, `{"type":"ADDED","object":{%s,%s}}`+"\n", typeMeta, object)
		}
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{%s,"metadata":{"resourceVersion":%q,"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n",
			typeMeta, kubeVersion)
	}
	http.NewResponseController(w).Flush()
	<-r.Context().Done()
}
