package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// split takes a request's path apart: /api/v1 or /apis/GROUP/VERSION, then namespaces/N or nothing, then resource/NAME/status, or a part of it.
func split(path string) (resource, key, sub string, ok bool) {
	rest, version := "", ""
	for _, k := range kinds {
		root := "/apis/" + k.APIVersion + "/"
		if k.APIVersion == "v1" {
			root = "/api/v1/"
		}
		if rest, ok = strings.CutPrefix(path, root); ok {
			version = k.APIVersion
			break
		}
	}
	f := strings.Split(rest, "/")
	namespace := ""
	if f[0] == "namespaces" && len(f) > 2 {
		namespace, f = f[1], f[2:]
	}
	if len(f) > 1 {
		key = namespace + "/" + f[1]
	}
	if len(f) > 2 {
		sub = f[2]
	}
	return f[0], key, sub, ok && kinds[f[0]].APIVersion == version
}

// ServeHTTP answers requests.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource, key, sub, ok := split(r.URL.Path)
	s.mu.Lock()
	fail, lacks := s.fail, ok && s.lacks == resource
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	q := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case fail != 0:
		refuse(w, fail, "")
	case lacks:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case !ok:
		discover(w, r)
	case resource == "events" && r.Method != http.MethodGet:
		s.event(w, r, key)
	case r.Method == http.MethodDelete && slices.Contains(operators, resource):
		s.delete(w, resource, key)
	case r.Method == http.MethodPatch && sub == "status":
		s.patch(w, r, resource, key)
	case r.Method == http.MethodPut && key != "":
		s.update(w, r, resource, key, sub)
	case r.Method == http.MethodPost && key == "":
		s.create(w, r, resource)
	case r.Method != http.MethodGet:
		refuse(w, http.StatusForbidden, "")
	case key != "":
		if o := s.Get(resource, key); o != nil {
			_ = json.NewEncoder(w).Encode(shape(r, o))
		} else {
			refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		}
	case q.Get("sendInitialEvents") == "true":
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid) // as a server before Kubernetes 1.27
	case q.Get("watch") != "":
		since, _ := strconv.Atoi(q.Get("resourceVersion"))
		s.watch(w, r, resource, since)
	default:
		s.list(w, r, resource)
	}
}

func refuse(w http.ResponseWriter, status int, reason metav1.StatusReason) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(status), Message: fmt.Sprintf("refused with %d", status),
	})
}

// selects reports whether a request's field selector selects an object.
func selects(r *http.Request, o Object) bool {
	field, value, has := strings.Cut(r.URL.Query().Get("fieldSelector"), "=")
	switch {
	case !has:
		return true
	case field == "metadata.name":
		return metaOf(o)["name"] == value
	case field == "spec.nodeName":
		spec, _ := o["spec"].(Object)
		return spec["nodeName"] == value
	}
	return false
}

// shape returns what a request gets of an object: of metadata alone, if it asks for that.
func shape(r *http.Request, o Object) Object {
	if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return o
	}
	return Object{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]}
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, resource string) {
	s.mu.Lock()
	list := s.all(resource, func(o Object) bool { return selects(r, o) })
	if s.lists++; s.lags == resource {
		list = s.old
	}
	s.mu.Unlock()
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
		items := list["items"].([]Object)
		for i := range items {
			items[i] = shape(r, items[i])
		}
	}
	_ = json.NewEncoder(w).Encode(list)
}

// all returns a list of the objects of a resource that are selected. The caller holds s.mu.
func (s *Server) all(resource string, selected func(Object) bool) Object {
	items := []Object{}
	for _, key := range slices.Sorted(maps.Keys(s.objects[resource])) {
		if o := s.objects[resource][key]; selected(o) {
			items = append(items, o)
		}
	}
	return Object{
		"kind": kinds[resource].Kind + "List", "apiVersion": kinds[resource].APIVersion,
		"metadata": Object{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
	}
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, resource string, since int) {
	s.mu.Lock()
	lags := s.lags == resource
	s.mu.Unlock()
	if lags {
		refuse(w, http.StatusInternalServerError, "")
		return
	}
	for {
		s.mu.Lock()
		var later []event
		for _, e := range s.events[s.behind(since):] {
			if e.resource == resource && selects(r, e.object) {
				later = append(later, e)
			}
		}
		since = s.version
		news, ends := s.news, s.fail != 0 || s.lags == resource || s.lacks == resource
		s.mu.Unlock()
		if ends {
			return
		}
		for _, e := range later {
			_ = json.NewEncoder(w).Encode(Object{"type": e.typ, "object": shape(r, e.object)})
		}
		w.(http.Flusher).Flush()
		if !await(r.Context(), news) {
			return
		}
	}
}

// behind returns the index of the first event after a version. The caller holds s.mu.
func (s *Server) behind(since int) int {
	i, _ := slices.BinarySearchFunc(s.events, since+1, func(e event, version int) int { return e.version - version })
	return i
}

func await(ctx context.Context, news <-chan struct{}) bool {
	select {
	case <-news:
		return true
	case <-ctx.Done():
		return false
	}
}

// patch applies a merge patch to an object's status, if the patch names the object's version, or none. For a Node it also applies
// a strategic merge patch, which merges conditions by their types. It changes annotations of Nodes and pods, as the API server does, and
// refuses a patch that names another UID than the object's as it does: as a change of a field that nobody can change
// (ValidateObjectMetaAccessorUpdate of apimachinery).
func (s *Server) patch(w http.ResponseWriter, r *http.Request, resource, key string) {
	var p Object
	sort := r.Header.Get("Content-Type")
	strategic := resource == "nodes" && sort == "application/strategic-merge-patch+json"
	err := json.NewDecoder(r.Body).Decode(&p)
	s.mu.Lock()
	s.tried++
	refuses := s.refuses
	s.mu.Unlock()
	switch {
	case refuses != 0:
		refuse(w, refuses, "")
		return
	case err != nil || !strategic && sort != "application/merge-patch+json":
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	o := s.objects[resource][key]
	version, _ := metaOf(p)["resourceVersion"].(string)
	if uid := metaOf(p)["uid"]; o != nil && uid != nil && uid != metaOf(o)["uid"] {
		s.mu.Unlock()
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	if o == nil || version != "" && version != metaOf(o)["resourceVersion"] {
		s.mu.Unlock()
		if o == nil {
			refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		} else {
			refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		}
		return
	}
	now := asObject(o)
	status, _ := now["status"].(Object)
	if status == nil {
		status = Object{}
	}
	next, _ := p["status"].(Object)
	if resource == "nodes" || resource == "pods" {
		annotate(metaOf(now), metaOf(p))
	}
	if strategic {
		next["conditions"] = merged(status["conditions"], next["conditions"])
	}
	maps.Copy(status, next)
	now["status"] = status
	s.put(resource, now)
	text, _ := json.Marshal(next)
	s.patches = append(s.patches, string(text))
	s.answer(w, resource, now)
}

// annotate merges a patch of annotations into an object's metadata.
func annotate(meta, patch Object) {
	have, _ := meta["annotations"].(Object)
	if have == nil {
		have = Object{}
	}
	with, _ := patch["annotations"].(Object)
	for key, value := range with {
		if have[key] = value; value == nil {
			delete(have, key)
		}
	}
	meta["annotations"] = have
}

// merged returns the conditions of a patch, and those of the object whose types the patch has not.
func merged(have, patch any) []any {
	all, _ := patch.([]any)
	had, _ := have.([]any)
	typ := func(c any) any { o, _ := c.(Object); return o["type"] }
	for _, c := range had {
		if !slices.ContainsFunc(all, func(o any) bool { return typ(o) == typ(c) }) {
			all = append(all, c)
		}
	}
	return all
}

func metaOf(o Object) Object {
	meta, _ := o["metadata"].(Object)
	return meta
}

func keyOf(meta Object) string {
	namespace, _ := meta["namespace"].(string)
	name, _ := meta["name"].(string)
	return namespace + "/" + name
}

// asObject returns a copy of an object, as JSON has it.
func asObject(o any) (out Object) {
	raw, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		panic(fmt.Sprintf("kubetest: %v", err)) // the test gave what is no object
	}
	return out
}

// Decode reads an object into a Go type.
func Decode(o Object, to any) {
	raw, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(raw, to)
	}
	if err != nil {
		panic(fmt.Sprintf("kubetest: %v", err))
	}
}
