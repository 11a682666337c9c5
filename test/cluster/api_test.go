package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// newClient makes the client by which the test itself asks the API server. Tests that wait ask it often, and a kubectl takes as much
// processor time as dozens of requests.
func (c *control) newClient() {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca)
	c.client = &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true},
		Timeout:   30 * time.Second,
	}
	c.t.Cleanup(c.client.CloseIdleConnections)
}

// ask sends the API server a request in the name of the user who has this token, and returns the answer.
func (c *control) ask(token, method, path, body string) (status string, answer []byte, err error) {
	req, err := http.NewRequest(method, "https://"+world4+":6443"+path, strings.NewReader(body))
	if err != nil {
		return "", nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	res, err := c.client.Do(req)
	if err != nil {
		return "", nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	return res.Status, answer, err
}

// read decodes an object, or a list, that the API server has at a path. Its reader is the cluster's administrator.
func (c *control) read(into any, path string) error {
	status, answer, err := c.ask(admin, http.MethodGet, path, "")
	switch {
	case err != nil:
		return err
	case !strings.HasPrefix(status, "200 "):
		return fmt.Errorf("GET %s: %s: %s", path, status, answer)
	}
	return json.Unmarshal(answer, into)
}

// get is read that may not fail.
func (c *control) get(into any, path string) {
	c.t.Helper()
	must(c.t, c.read(into, path))
}

// conditions are those of a Node or a Pod.
type conditions []struct{ Type, Status, Reason string }

// is reports whether there is a condition of a type, and whether it is so.
func (all conditions) is(kind string) bool {
	for _, c := range all {
		if c.Type == kind {
			return c.Status == "True"
		}
	}
	return false
}

// nodeObject is what the tests want to know of a Node.
type nodeObject struct {
	Metadata struct{ Annotations map[string]string }
	Spec     struct {
		PodCIDRs []string
		Taints   []struct{ Key string }
	}
	Status struct {
		Conditions conditions
		NodeInfo   struct{ BootID string }
	}
}

// object returns a Node as the API server has it.
func (c *control) object(node string) (o nodeObject) {
	c.t.Helper()
	c.get(&o, nodesPath+node)
	return o
}

// Paths of the API server.
const (
	nodesPath    = "/api/v1/nodes/"
	defaultPath  = "/api/v1/namespaces/default/"
	berthPath    = "/apis/berth.dev/v1alpha1/"
	agentPods    = "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name%3Dberth"
	operatorPods = "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name%3Dberth-operator"
)

// ready reports whether the API server serves.
func (c *control) ready() bool {
	status, _, err := c.ask(admin, http.MethodGet, "/readyz", "")
	return err == nil && strings.HasPrefix(status, "200 ")
}
