// Package routes is the agent's API on a daemon's server: its paths, what each
// accepts and answers, and the metrics of what its verbs know. The interface Verbs hides what the
// verbs do.
//
// routes.go lists all paths; verbs.go, show.go, owed.go and events.go answer them,
// and body.go and query.go check what requests say.
package routes

import (
	"net/http"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/events"
)

// New returns a server of the agent's API, on which requests wait until Open. It
// gives o its routes and collectors.
func New(v Verbs, hub *events.Hub, o server.Options) *server.Server {
	a := &agent{v, hub}
	o.Routes = a.routes()
	o.Status = statusOf
	o.Elsewhere = api.PathOpenAPI + " lists all paths"
	owed := map[string]bool{}
	for _, kind := range o.Kinds {
		owed[kind] = true
	}
	o.Collectors = []server.Collector{&figures{verbs: v, owed: owed}}
	return server.New(o)
}

// agent has what the routes answer from.
type agent struct {
	verbs  Verbs
	events *events.Hub
}

// The lanes in which requests wait.
var (
	laneAdd    = server.Lane{Name: "add"}
	laneDelete = server.Lane{Name: "delete", Deletions: true}
	laneCheck  = server.Lane{Name: "check"}
	laneGC     = server.Lane{Name: "gc"}
	laneRead   = server.Lane{Name: "read"} // lists, the ledger, audits
)

// routes lists all that the agent does; health and metrics are the server's own.
// openapi.yaml has the same list. Lanes have their turns in the order of this list.
func (a *agent) routes() []server.Route {
	const one = api.PathAttachments + "/{id}"
	return []server.Route{
		{Method: "POST", Path: api.PathAttachments, Verb: "add", Call: a.add, Limit: time.Minute, Lane: laneAdd},
		{Method: "DELETE", Path: api.PathAttachments, Verb: "delete", Call: a.delete, Parameters: deletionParameters, Limit: time.Minute, Lane: laneDelete, Finish: true},
		{Method: "DELETE", Path: one, Verb: "delete", Call: a.deleteOne, Parameters: []string{"wait"}, Limit: time.Minute, Lane: laneDelete, Finish: true},
		{Method: "POST", Path: api.PathCheck, Verb: "check", Call: a.check, Limit: 30 * time.Second, Lane: laneCheck},
		{Method: "POST", Path: api.PathGC, Verb: "gc", Call: a.gc, Limit: time.Minute, Lane: laneGC, Finish: true},
		{Method: "POST", Path: api.PathAdopt, Verb: "adopt", Call: a.adopt, Limit: time.Minute, Lane: laneGC, Finish: true},
		{Method: "POST", Path: api.PathOwedRetry, Verb: "retry", Call: a.retryOwed, Limit: time.Minute, Lane: laneGC, Finish: true},
		{Method: "GET", Path: api.PathAttachments, Verb: "list", Call: a.list, Parameters: listParameters, Limit: 10 * time.Second, Lane: laneRead},
		{Method: "GET", Path: one, Verb: "get", Call: a.get, Limit: 10 * time.Second, Lane: laneRead},
		{Method: "GET", Path: api.PathPools, Verb: "pools", Call: a.pools, Limit: 10 * time.Second, Lane: laneRead},
		{Method: "GET", Path: api.PathLedger, Verb: "ledger", Call: a.ledger, Limit: 30 * time.Second, Lane: laneRead},
		{Method: "GET", Path: api.PathAudit, Verb: "audit", Call: a.audit, Parameters: []string{"pods"}, Limit: time.Minute, Lane: laneRead},
		{Method: "GET", Path: api.PathOwed, Verb: "owed", Call: a.owed, Limit: 10 * time.Second, Lane: laneRead},
		{Method: "GET", Path: api.PathNodes, Verb: "nodes", Call: a.nodes, Limit: 10 * time.Second, Lane: laneRead},
		// It waits for the API server, so it takes no place from those who wait for the agent alone.
		{Method: "GET", Path: api.PathPods, Verb: "cluster_pods", Call: a.clusterPods, Limit: 10 * time.Second},
		{Method: "GET", Path: api.PathStatus, Verb: "status", Call: a.status, Parameters: []string{"pool"}, Limit: 10 * time.Second},
		{Method: "POST", Path: api.PathStatus, Verb: "ready", Call: a.ready, Limit: 10 * time.Second}, // it waits for plugins
		{Method: "GET", Path: api.PathHistory, Verb: "history", Stream: a.history, Parameters: historyParameters},
		{Method: "GET", Path: api.PathEvents, Verb: "events", Stream: a.follow, Parameters: []string{"since"}},
		{Method: "GET", Path: api.PathOpenAPI, Verb: "openapi", Handler: serveOpenAPI},
	}
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(api.OpenAPI) // a client that left needs no answer
}
