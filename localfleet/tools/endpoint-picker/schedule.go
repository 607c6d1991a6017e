package main

import (
	"math/rand/v2"
	"slices"
)

const roleLabel = "llm-d.ai/role"

// Which roles take part in a phase; one without a role decodes.
var roles = map[string][]string{
	"prefill-filter": {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"},
	"decode-filter":  {"decode", "prefill-decode", "both", "encode-prefill-decode", ""},
}

// choice is where a request goes.
type choice struct {
	server, prefill *server
	cached          bool
}

// schedule chooses and remembers; nil where nobody can take the request.
func (p *picker) schedule(model string, asked *body, onlyCached bool) (*choice, failure) {
	s := p.store
	s.Lock()
	defer s.Unlock()
	candidates := s.all()
	if len(candidates) == 0 {
		return nil, failure{503, "ServiceUnavailable", "failed to find candidate endpoints for serving the request"}
	}
	blocks := p.config.blocksOf(model, asked.prompt)
	known := held(blocks, candidates)
	name := ""
	if p.config.split {
		name = "decode"
	}
	first := p.run(name, candidates, blocks, known)
	if first == nil {
		return nil, failure{429, "ResourceExhausted", "failed to find target endpoint: no endpoint is left"}
	}
	made := &choice{server: first, cached: known[first] > 0}
	if onlyCached && !made.cached {
		return nil, failure{412, "PreconditionFailed", "no decode worker has the requested KV cache"}
	}
	if p.config.split && p.splits(asked, known[first]) {
		made.prefill = p.run("prefill", candidates, blocks, known)
	}
	for _, one := range []*server{made.server, made.prefill} {
		if one != nil {
			one.known.add(blocks)
		}
	}
	made.server.running++
	s.requests++
	return made, failure{}
}

// splits tells whether the prompt is read elsewhere than it is answered.
func (p *picker) splits(asked *body, blocks int) bool {
	if p.config.alwaysSplit {
		return true
	}
	tokens, least := len(asked.prompt)/charactersToken, p.config.uncached
	return least > 0 && tokens >= least && tokens-blocks*p.config.block >= least
}

// run returns the choice of a profile.
func (p *picker) run(name string, candidates []*server, blocks []uint64, known map[*server]int) *server {
	one, there := p.config.profile(name)
	if !there {
		return nil
	}
	atRandom := false
	for _, each := range one.Plugins {
		switch kind := p.config.byName[each.PluginRef].Type; {
		case slices.Contains(filters, kind):
			candidates = slices.DeleteFunc(slices.Clone(candidates), func(s *server) bool {
				return !slices.Contains(roles[kind], s.labels[roleLabel])
			})
		case kind == "random-picker":
			atRandom = true
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	if atRandom {
		return candidates[rand.IntN(len(candidates))]
	}
	sums := map[*server]float64{}
	for _, each := range one.Plugins {
		weight := 1.0
		if each.Weight != nil {
			weight = *each.Weight
		}
		for s, score := range scored(p.config.byName[each.PluginRef].Type, candidates, len(blocks), known) {
			sums[s] += weight * min(1, max(0, score))
		}
	}
	best := candidates[0] // they are in any order, so that the first among equals is anyone
	for _, s := range candidates[1:] {
		if sums[s] > sums[best] {
			best = s
		}
	}
	return best
}

// scored returns a scorer's judgement, from 0 to 1.
func scored(kind string, candidates []*server, blocks int, known map[*server]int) map[*server]float64 {
	values := map[*server]float64{}
	switch kind {
	case "prefix-cache-scorer":
		for _, s := range candidates {
			if blocks > 0 {
				values[s] = float64(known[s]) / float64(blocks)
			}
		}
	case "kv-cache-utilization-scorer":
		for _, s := range candidates {
			values[s] = 1 - s.metrics.cache
		}
	case "queue-scorer":
		return spread(candidates, func(s *server) float64 { return s.metrics.waiting })
	case "running-requests-size-scorer":
		return spread(candidates, func(s *server) float64 { return s.metrics.running })
	case "active-request-scorer":
		most := 0
		for _, s := range candidates {
			most = max(most, s.running)
		}
		for _, s := range candidates {
			values[s] = 1
			if most > 0 && s.running > 0 {
				values[s] = float64(most-s.running) / float64(most)
			}
		}
	}
	return values
}

// spread gives 1 to the one that has least of something and 0 to the one that has most.
func spread(candidates []*server, of func(*server) float64) map[*server]float64 {
	least, most := of(candidates[0]), of(candidates[0])
	for _, s := range candidates {
		least, most = min(least, of(s)), max(most, of(s))
	}
	values := map[*server]float64{}
	for _, s := range candidates {
		values[s] = 1
		if most > least {
			values[s] = (most - of(s)) / (most - least)
		}
	}
	return values
}

// done says that a server has answered.
func (p *picker) done(one *server) {
	p.store.Lock()
	defer p.store.Unlock()
	one.running--
}
