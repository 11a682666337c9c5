package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// event makes an Event of events.k8s.io/v1, or counts one, if the API server would take it.
func (s *Server) event(w http.ResponseWriter, r *http.Request, key string) {
	var o Object
	err := json.NewDecoder(r.Body).Decode(&o)
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.objects["events"][key]
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	case r.Method == http.MethodPatch && is == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodPatch:
		next := asObject(is)
		maps.Copy(next, o)
		s.takeEvent(w, next)
	case r.Method == http.MethodPost && s.objects["events"][keyOf(metaOf(o))] != nil:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case r.Method == http.MethodPost:
		s.takeEvent(w, o)
	default:
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	}
}

// takeEvent keeps an Event that has what the API server's validation asks for.
func (s *Server) takeEvent(w http.ResponseWriter, o Object) {
	regarding, _ := o["regarding"].(Object)
	series, _ := o["series"].(Object)
	namespace, of := metaOf(o)["namespace"], regarding["namespace"]
	text := func(of Object, field string, longest int) bool {
		t, _ := of[field].(string)
		return t != "" && len(t) <= longest
	}
	count, _ := series["count"].(float64)
	if !text(o, "action", 128) || !text(o, "reason", 128) || !text(o, "note", 1024) || !text(o, "eventTime", 128) ||
		!text(o, "reportingController", 128) || !text(o, "reportingInstance", 128) || !text(regarding, "kind", 128) || !text(regarding, "name", 253) ||
		!slices.Contains([]any{"Warning", "Normal"}, o["type"]) || of != nil && of != namespace || of == nil && namespace != "default" ||
		series != nil && (count < 2 || !text(series, "lastObservedTime", 128)) {
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	s.put("events", o)
	_ = json.NewEncoder(w).Encode(o)
}

// Events returns the Events, in the order in which they were made: KIND NAME TYPE REASON: NOTE, and how often, if it was not once.
func (s *Server) Events() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, e := range s.events {
		if name := keyOf(metaOf(e.object)); e.resource == "events" && e.typ == "ADDED" {
			names = append(names, name)
		}
	}
	for _, name := range names {
		o := s.objects["events"][name]
		if o == nil {
			continue
		}
		regarding, _ := o["regarding"].(Object)
		text := fmt.Sprintf("%v %v %v %v: %v", regarding["kind"], strings.TrimPrefix(fmt.Sprintf("%v/%v", regarding["namespace"], regarding["name"]), "<nil>/"), o["type"], o["reason"], o["note"])
		if series, _ := o["series"].(Object); series != nil {
			text += fmt.Sprintf(" (x%v)", series["count"])
		}
		all = append(all, text)
	}
	return all
}
