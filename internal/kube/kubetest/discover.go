package kubetest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// namespaced are the resources whose objects are in namespaces.
var namespaced = []string{"pods", "events", "network-attachment-definitions"}

// discover tells clients which resources there are (/api, /apis, and /apis/GROUP/VERSION). It refuses everything else.
func discover(w http.ResponseWriter, r *http.Request) {
	version, ofGroup := strings.CutPrefix(r.URL.Path, "/apis/")
	if !ofGroup {
		version = strings.TrimPrefix(r.URL.Path, "/api/")
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version}
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		kind := kinds[name]
		if kind.APIVersion == version {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: name, Kind: kind.Kind, Namespaced: slices.Contains(namespaced, name), Verbs: metav1.Verbs{"get", "list", "watch", "create", "update", "patch"},
			})
		}
		group, v, ok := strings.Cut(kind.APIVersion, "/")
		if ok && !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == group }) {
			served := metav1.GroupVersionForDiscovery{GroupVersion: kind.APIVersion, Version: v}
			groups.Groups = append(groups.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{served}, PreferredVersion: served})
		}
	}
	switch {
	case r.Method != http.MethodGet:
		refuse(w, http.StatusForbidden, "")
	case r.URL.Path == "/api":
		_ = json.NewEncoder(w).Encode(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case r.URL.Path == "/apis":
		_ = json.NewEncoder(w).Encode(groups)
	case len(list.APIResources) > 0:
		_ = json.NewEncoder(w).Encode(list)
	case ofGroup && strings.Count(version, "/") == 1:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound) // the server has no such group
	default:
		refuse(w, http.StatusForbidden, "")
	}
}
