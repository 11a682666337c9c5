package kubetest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// discover answers which groups and resources there are, and reports whether somebody asked for that.
func discover(w http.ResponseWriter, path string) bool {
	groups := map[string][]string{} // resources, by API version
	for resource, k := range kinds {
		groups[k.APIVersion] = append(groups[k.APIVersion], resource)
	}
	switch version := strings.TrimPrefix(strings.TrimPrefix(path, "/api/"), "/apis/"); {
	case path == "/api":
		_ = json.NewEncoder(w).Encode(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case path == "/apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, gv := range slices.Sorted(maps.Keys(groups)) {
			if name, version, is := strings.Cut(gv, "/"); is {
				v := metav1.GroupVersionForDiscovery{GroupVersion: gv, Version: version}
				list.Groups = append(list.Groups, metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
			}
		}
		_ = json.NewEncoder(w).Encode(list)
	case groups[version] != nil:
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version}
		for _, resource := range slices.Sorted(slices.Values(groups[version])) {
			namespaced := resource == "pods" || resource == "events"
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource, Kind: kinds[resource].Kind, Namespaced: namespaced, Verbs: metav1.Verbs{"get", "list", "watch"}})
		}
		_ = json.NewEncoder(w).Encode(list)
	case strings.Count(path, "/") == 3 && strings.HasPrefix(path, "/apis/"): // a version of a group
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		return false
	}
	return true
}

// operators are the resources that an operator writes as a whole; agents patch.
var operators = []string{"ippools", "nodenetworks"}

// write creates, updates or deletes an object as an operator does: an update names the version that it is of, and changes the
// status alone or everything but the status. An object that is deleted goes at once, whatever finalizers it has.
func (s *Server) write(w http.ResponseWriter, r *http.Request, resource, key, sub string) {
	var o Object
	if r.Method != http.MethodDelete && json.NewDecoder(r.Body).Decode(&o) != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPost {
		key = keyOf(metaOf(o))
	}
	is := s.objects[resource][key]
	switch {
	case r.Method == http.MethodPost && is != nil:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	case r.Method == http.MethodPost:
		delete(o, "status")
	case is == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case r.Method == http.MethodDelete:
		s.remove(resource, key)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
		return
	case metaOf(o)["resourceVersion"] != metaOf(is)["resourceVersion"]:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	case sub == "status":
		status := o["status"]
		o = asObject(is)
		o["status"] = status
	default:
		o["status"] = is["status"]
	}
	s.put(resource, o)
	_ = json.NewEncoder(w).Encode(o)
}
