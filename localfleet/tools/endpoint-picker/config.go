package main

import (
	"fmt"
	"os"
	"slices"

	"sigs.k8s.io/yaml"
)

// Of the real one's many plugins, those that are modelled here.
var (
	scorers = []string{
		"prefix-cache-scorer", "queue-scorer", "kv-cache-utilization-scorer", "active-request-scorer", "running-requests-size-scorer",
	}
	pickers  = []string{"max-score-picker", "random-picker"}
	filters  = []string{"prefill-filter", "decode-filter"}
	deciders = []string{"prefix-based-pd-decider", "always-disagg-pd-decider"}
	others   = []string{
		"approx-prefix-cache-producer", "single-profile-handler", "disagg-profile-handler", "disagg-headers-handler",
		"metrics-data-source",
	}
	parserTypes = []string{"openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"}
)

type plugin struct {
	Name, Type string
	Parameters map[string]any
}

type reference struct {
	PluginRef string
	Weight    *float64
}

type profile struct {
	Name    string
	Plugins []reference
}

// config is an EndpointPickerConfig, read.
type config struct {
	APIVersion, Kind   string
	Plugins            []plugin
	SchedulingProfiles []profile
	RequestHandler     struct{ Parsers []reference }
	FeatureGates       []string
	FlowControl        map[string]any
	DataLayer          map[string]any
	SaturationDetector map[string]any

	byName             map[string]plugin
	parsers            []string
	metricsPath        string
	block, longest     int
	capacity           int
	learns, split      bool
	alwaysSplit, sends bool
	uncached           int
}

func readConfig(f flags) (*config, error) {
	text := []byte(f.configText)
	if f.configFile != "" {
		var err error
		if text, err = os.ReadFile(f.configFile); err != nil {
			return nil, err
		}
	}
	c := &config{byName: map[string]plugin{}, block: smallestBlock, longest: 131072, capacity: 31250, metricsPath: "/metrics"}
	if len(text) == 0 {
		return nil, fmt.Errorf("there is neither --config-file nor --config-text") // the real one has a default
	}
	if err := yaml.UnmarshalStrict(text, c); err != nil {
		return nil, err
	}
	if c.APIVersion != "llm-d.ai/v1alpha1" || c.Kind != "EndpointPickerConfig" {
		return nil, fmt.Errorf("no kind %q is registered for %q", c.Kind, c.APIVersion)
	}
	known := slices.Concat(scorers, pickers, filters, deciders, others, parserTypes)
	for _, one := range c.Plugins {
		if !slices.Contains(known, one.Type) {
			return nil, fmt.Errorf("plugin type %q is not found", one.Type)
		}
		if one.Name == "" {
			one.Name = one.Type
		}
		c.byName[one.Name] = one
	}
	if err := c.readProfiles(); err != nil {
		return nil, err
	}
	if err := c.readParsers(); err != nil {
		return nil, err
	}
	return c, c.readParameters()
}

func (c *config) readProfiles() error {
	seen := map[string]bool{}
	for _, one := range c.SchedulingProfiles {
		if one.Name == "" || seen[one.Name] {
			return fmt.Errorf("scheduling profile %q has no name of its own", one.Name)
		}
		seen[one.Name] = true
		for _, each := range one.Plugins {
			if _, there := c.byName[each.PluginRef]; !there {
				return fmt.Errorf("plugin %q of scheduling profile %q is not among the plugins", each.PluginRef, one.Name)
			}
		}
	}
	c.split = c.has("disagg-profile-handler")
	if len(c.SchedulingProfiles) == 0 {
		return fmt.Errorf("there is no scheduling profile") // the real one makes one of all plugins
	}
	if len(c.SchedulingProfiles) > 1 && !c.split {
		return fmt.Errorf("several scheduling profiles need a profile handler")
	}
	return nil
}

func (c *config) readParsers() error {
	for _, one := range c.RequestHandler.Parsers {
		kind := one.PluginRef // a parser needs no place among the plugins
		if declared, there := c.byName[one.PluginRef]; there {
			kind = declared.Type
		}
		if !slices.Contains(parserTypes, kind) {
			return fmt.Errorf("parser %q is not found", one.PluginRef)
		}
		c.parsers = append(c.parsers, kind)
	}
	if len(c.parsers) == 0 {
		c.parsers = []string{"openai-parser", "anthropic-parser", "vllmhttp-parser"}
	}
	return nil
}

func (c *config) readParameters() error {
	for _, one := range c.byName {
		switch one.Type {
		case "approx-prefix-cache-producer":
			tunes, said := one.Parameters["autoTune"].(bool)
			c.learns = said && !tunes // it tunes itself by metrics that no engine here has, and then learns nothing
			c.block = max(smallestBlock, number(one, "blockSizeTokens", smallestBlock))
			c.longest = number(one, "maxPrefixTokensToMatch", c.longest)
			c.capacity = number(one, "lruCapacityPerServer", c.capacity)
		case "metrics-data-source":
			if path, said := one.Parameters["path"].(string); said {
				c.metricsPath = path
			}
		case "prefix-based-pd-decider":
			c.uncached = number(one, "nonCachedTokens", 0)
		case "disagg-headers-handler":
			c.sends = true
		case "disagg-profile-handler":
			named, _ := one.Parameters["deciders"].(map[string]any)
			name, _ := named["prefill"].(string)
			decider, there := c.byName[name]
			if name != "" && !there {
				return fmt.Errorf("decider %q is not among the plugins", name)
			}
			c.alwaysSplit = decider.Type == "always-disagg-pd-decider"
		}
	}
	return nil
}

func number(one plugin, name string, fallback int) int {
	if value, there := one.Parameters[name].(float64); there {
		return int(value)
	}
	return fallback
}

func (c *config) has(kind string) bool {
	for _, one := range c.byName {
		if one.Type == kind {
			return true
		}
	}
	return false
}

// profile returns the profile of that name, or the only one.
func (c *config) profile(name string) (profile, bool) {
	for _, one := range c.SchedulingProfiles {
		if one.Name == name || name == "" {
			return one, true
		}
	}
	return profile{}, false
}
