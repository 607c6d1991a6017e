// Package ext fills the extension point of Traefik's dynamic configuration with nothing.
package ext

// HTTP extends the HTTP configuration; we extend nothing.
type HTTP struct{}

// DeepCopyInto copies nothing, as there is nothing.
func (*HTTP) DeepCopyInto(*HTTP) {}

// Router extends a router; we extend nothing.
type Router struct{}

// DeepCopyInto copies nothing, as there is nothing.
func (*Router) DeepCopyInto(*Router) {}
