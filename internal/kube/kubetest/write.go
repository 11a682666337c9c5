package kubetest

import (
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// create adds an object (POST).
func (s *Server) create(w http.ResponseWriter, r *http.Request, resource string) {
	var o Object
	if json.NewDecoder(r.Body).Decode(&o) != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	if s.objects[resource][keyOf(metaOf(o))] != nil {
		s.mu.Unlock()
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	}
	delete(o, "status")
	s.put(resource, o)
	s.answer(w, resource, o)
}

// update replaces an object's status, or the rest of it (PUT), if the writer has read its newest version.
func (s *Server) update(w http.ResponseWriter, r *http.Request, resource, key, sub string) {
	var o Object
	if json.NewDecoder(r.Body).Decode(&o) != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	was := s.objects[resource][key]
	switch {
	case was == nil:
		s.mu.Unlock()
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case metaOf(o)["resourceVersion"] != metaOf(was)["resourceVersion"]:
		s.mu.Unlock()
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	now := asObject(was)
	for part := range o {
		if (part == "status") == (sub == "status") {
			now[part] = o[part]
		}
	}
	s.put(resource, now)
	s.answer(w, resource, now)
}

// answer answers a write, and tells of it. The caller holds s.mu, which answer gives up.
func (s *Server) answer(w http.ResponseWriter, resource string, o Object) {
	out := asObject(o)
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(out)
	if s.Wrote != nil {
		s.Wrote(resource, out)
	}
}

// operators are the resources that an operator makes and deletes.
var operators = []string{"ippools", "nodenetworks"}

// delete takes an object away (DELETE), whatever finalizers it has.
func (s *Server) delete(w http.ResponseWriter, resource, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[resource][key] == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	s.remove(resource, key)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
}
