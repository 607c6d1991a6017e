package main

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// server is one engine: a pod and one of its ports.
type server struct {
	pod, address string
	labels       map[string]string
	metrics      metrics
	running      int // requests that it was given here and has not answered
	known        *recent
	stop         chan struct{}
}

// store is what the picker knows.
type store struct {
	sync.Mutex
	refresh  time.Duration
	capacity int
	selector map[string]string
	ports    []int
	pods     map[string]object
	listing  map[string]object // the pods of a list that is just being read
	servers  map[string]*server
	requests int

	metricsPath string
}

func newStore(c *config, f flags) *store {
	selector := map[string]string{}
	for _, pair := range strings.Split(f.selector, ",") {
		key, text, _ := strings.Cut(pair, "=")
		selector[key] = text
	}
	return &store{
		refresh: f.refresh, capacity: c.capacity, selector: selector, ports: f.targets, pods: map[string]object{},
		servers: map[string]*server{}, metricsPath: c.metricsPath,
	}
}

func (s *store) heedPod(what string, one object) {
	s.Lock()
	defer s.Unlock()
	switch what {
	case "RESET":
		s.listing = map[string]object{}
	case "LISTED":
		s.pods, s.listing = s.listing, nil
		s.settle()
	case "DELETED":
		delete(s.pods, one.Metadata.Name)
		s.settle()
	case "ADDED", "MODIFIED":
		if s.listing != nil {
			s.listing[one.Metadata.Name] = one
			return
		}
		s.pods[one.Metadata.Name] = one
		s.settle()
	}
}

// settle makes the servers those of the ready pods that are selected.
func (s *store) settle() {
	wanted := map[string]bool{}
	for name, pod := range s.pods {
		address, ready := readiness(pod)
		if !ready || !matches(s.selector, pod.Metadata.Labels) {
			continue
		}
		for _, port := range s.ports {
			key := net.JoinHostPort(address, strconv.Itoa(port))
			wanted[key] = true
			if there, exists := s.servers[key]; exists && there.pod == name {
				there.labels = pod.Metadata.Labels
				continue
			} else if exists {
				close(there.stop)
			}
			one := &server{
				pod: name, address: key, labels: pod.Metadata.Labels, known: newRecent(s.capacity), stop: make(chan struct{}),
			}
			s.servers[key] = one
			go s.scrape(one)
		}
	}
	for key, one := range s.servers {
		if !wanted[key] {
			close(one.stop)
			delete(s.servers, key)
		}
	}
}

// readiness returns a pod's address, and whether it can be given requests.
func readiness(pod object) (string, bool) {
	var status struct {
		PodIP      string
		Conditions []struct{ Type, Status string }
	}
	if json.Unmarshal(pod.Status, &status) != nil || pod.Metadata.DeletionTimestamp != nil || status.PodIP == "" {
		return "", false
	}
	for _, one := range status.Conditions {
		if one.Type == "Ready" && one.Status == "True" {
			return status.PodIP, true
		}
	}
	return "", false
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// all returns every server, in any order.
func (s *store) all() []*server {
	found := make([]*server, 0, len(s.servers))
	for _, one := range s.servers {
		found = append(found, one)
	}
	rand.Shuffle(len(found), func(a, b int) { found[a], found[b] = found[b], found[a] })
	return found
}
