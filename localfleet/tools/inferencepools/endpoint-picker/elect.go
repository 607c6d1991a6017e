package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"
)

const (
	leaseSeconds = 15
	renewWithin  = 10 * time.Second
	tryEvery     = 2 * time.Second
)

type lease struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		HolderIdentity       string `json:"holderIdentity"`
		LeaseDurationSeconds int    `json:"leaseDurationSeconds"`
		AcquireTime          string `json:"acquireTime,omitempty"`
		RenewTime            string `json:"renewTime,omitempty"`
		LeaseTransitions     int    `json:"leaseTransitions"`
	} `json:"spec"`
}

func (p *picker) leasePath() (string, string) {
	name := fmt.Sprintf("epp-%s-%s.llm-d.ai", p.flags.namespace, p.flags.name)
	return "/apis/coordination.k8s.io/v1/namespaces/" + p.flags.namespace + "/leases", name
}

// elect closes the channel once this one leads, keeps the lease, and ends the program where it is lost.
func (p *picker) elect(ctx context.Context, led chan struct{}) {
	p.holder = fmt.Sprintf("%s_%d", hostname(), time.Now().UnixNano())
	var heard lease
	var changed, renewed time.Time
	for ; ctx.Err() == nil; time.Sleep(tryEvery) {
		held, now, err := p.hold(ctx, &heard, &changed)
		if err != nil {
			log.Printf("the lease is not to be had: %v", err)
		}
		switch {
		case held:
			if renewed = now; !p.leads.Load() {
				log.Printf("%s leads", p.holder)
				p.leads.Store(true)
				close(led)
			}
		case p.leads.Load() && time.Since(renewed) > renewWithin:
			log.Fatal("leader election lost")
		}
	}
}

// hold tries once to have or keep the lease.
func (p *picker) hold(ctx context.Context, heard *lease, changed *time.Time) (bool, time.Time, error) {
	path, name := p.leasePath()
	now := time.Now()
	var found lease
	err := p.api.read(ctx, http.MethodGet, path+"/"+name, nil, &found)
	var refused refusal
	if errors.As(err, &refused) && refused.code == http.StatusNotFound {
		found = lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: map[string]any{"name": name}}
		p.sign(&found, now)
		err := p.api.read(ctx, http.MethodPost, path, found, &found)
		return err == nil, now, err
	}
	if err != nil {
		return false, now, err
	}
	if found.Spec.HolderIdentity != heard.Spec.HolderIdentity || found.Spec.RenewTime != heard.Spec.RenewTime {
		*heard, *changed = found, now
	}
	others := found.Spec.HolderIdentity != "" && found.Spec.HolderIdentity != p.holder
	if others && now.Sub(*changed) < leaseSeconds*time.Second {
		return false, now, nil
	}
	p.sign(&found, now)
	err = p.api.read(ctx, http.MethodPut, path+"/"+name, found, &found)
	return err == nil, now, err
}

func (p *picker) sign(one *lease, now time.Time) {
	stamp := now.UTC().Format("2006-01-02T15:04:05.000000Z")
	if one.Spec.HolderIdentity != p.holder {
		one.Spec.AcquireTime = stamp
		one.Spec.LeaseTransitions++
	}
	one.Spec.HolderIdentity, one.Spec.RenewTime, one.Spec.LeaseDurationSeconds = p.holder, stamp, leaseSeconds
}

// release gives the lease back at the end.
func (p *picker) release() {
	if !p.flags.elect || !p.leads.Load() {
		return
	}
	ctx, end := context.WithTimeout(context.Background(), tryEvery)
	defer end()
	path, name := p.leasePath()
	var found lease
	if p.api.read(ctx, http.MethodGet, path+"/"+name, nil, &found) == nil && found.Spec.HolderIdentity == p.holder {
		found.Spec.HolderIdentity, found.Spec.LeaseDurationSeconds = "", 1
		_ = p.api.read(ctx, http.MethodPut, path+"/"+name, found, &found)
	}
}
