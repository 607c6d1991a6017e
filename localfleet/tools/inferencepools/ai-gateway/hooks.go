package main

import (
	"context"
	"log"
	"strings"

	extension "github.com/envoyproxy/gateway/proto/extension"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const connectionManager = "envoy.filters.network.http_connection_manager"

type hooks struct {
	extension.UnimplementedEnvoyGatewayExtensionServer
}

// PostClusterModify has the cluster of a rule with a pool send each request where the picker's header says.
func (hooks) PostClusterModify(
	_ context.Context, asked *extension.PostClusterModifyRequest,
) (*extension.PostClusterModifyResponse, error) {
	one := asked.GetCluster()
	pools := poolsIn(asked.GetPostClusterContext().GetBackendExtensionResources())
	if one == nil || len(pools) == 0 {
		return &extension.PostClusterModifyResponse{Cluster: one}, nil
	}
	if len(pools) > 1 {
		panic("BUG: a rule has more than one InferencePool")
	}
	one.ClusterDiscoveryType = &cluster.Cluster_Type{Type: cluster.Cluster_ORIGINAL_DST}
	one.LbPolicy = cluster.Cluster_CLUSTER_PROVIDED
	one.ConnectTimeout = durationpb.New(connectTimeout)
	byHeader := &cluster.Cluster_OriginalDstLbConfig{UseHttpHeader: true, HttpHeaderName: chosenHeader}
	one.LbConfig = &cluster.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: byHeader}
	one.LoadBalancingPolicy = nil
	one.EdsClusterConfig = nil
	pools[0].mark(one.Metadata)
	return &extension.PostClusterModifyResponse{Cluster: one}, nil
}

// PostRouteModify marks the route of a rule with a pool.
func (hooks) PostRouteModify(
	_ context.Context, asked *extension.PostRouteModifyRequest,
) (*extension.PostRouteModifyResponse, error) {
	one := asked.GetRoute()
	if pools := poolsIn(asked.GetPostRouteContext().GetExtensionResources()); one.GetRoute() != nil && len(pools) > 0 {
		one.GetRoute().HostRewriteSpecifier = &route.RouteAction_AutoHostRewrite{AutoHostRewrite: wrapperspb.Bool(false)}
		pools[0].mark(one.Metadata)
	}
	return &extension.PostRouteModifyResponse{Route: one}, nil
}

// PostTranslateModify adds the clusters of pickers, and their filters to listeners.
func (hooks) PostTranslateModify(
	_ context.Context, asked *extension.PostTranslateModifyRequest,
) (*extension.PostTranslateModifyResponse, error) {
	clusters := asked.Clusters
	for _, one := range asked.Clusters { // one for each rule, however many have the same picker
		if p, there := marked(one.Metadata); there {
			clusters = append(clusters, p.cluster())
		}
	}
	for _, one := range asked.Listeners {
		configurations := configurationsOf(one, asked.Routes)
		if pools := poolsOf(configurations); len(pools) > 0 {
			addFilters(one, pools)
			for _, configuration := range configurations {
				leaveOut(configuration, pools)
			}
		}
	}
	return &extension.PostTranslateModifyResponse{
		Clusters: clusters, Secrets: asked.Secrets, Listeners: asked.Listeners, Routes: asked.Routes,
	}, nil
}

// configurationsOf returns the route configurations of a listener, but for those of Envoy Gateway's own.
func configurationsOf(one *listener.Listener, all []*route.RouteConfiguration) []*route.RouteConfiguration {
	var found []*route.RouteConfiguration
	if strings.HasPrefix(one.Name, "envoy-gateway-proxy-stats-") || strings.HasPrefix(one.Name, "envoy-gateway-proxy-ready-") {
		return nil
	}
	for _, chain := range chainsOf(one) {
		manager, _ := managerOf(chain)
		for _, configuration := range all {
			if manager != nil && configuration.Name == manager.GetRds().GetRouteConfigName() {
				found = append(found, configuration)
			}
		}
	}
	return found
}

// poolsOf returns the pool of each route, so that a pool which several routes have is there several times.
func poolsOf(configurations []*route.RouteConfiguration) []pool {
	var found []pool
	for _, configuration := range configurations {
		byRoute := map[string]pool{}
		for _, host := range configuration.VirtualHosts {
			for _, one := range host.Routes {
				if p, there := marked(one.Metadata); there {
					byRoute[one.Name] = p
				}
			}
		}
		for _, p := range byRoute {
			found = append(found, p)
		}
	}
	return found
}

// addFilters puts the filter of each pool before the router. Only those that were there before keep others out.
func addFilters(one *listener.Listener, pools []pool) {
	for _, chain := range chainsOf(one) {
		manager, at := managerOf(chain)
		if manager == nil {
			continue
		}
		there := map[string]bool{}
		for _, filter := range manager.HttpFilters {
			there[filter.Name] = true
		}
		last := len(manager.HttpFilters) - 1
		router := manager.HttpFilters[last]
		filters := manager.HttpFilters[:last:last]
		for _, p := range pools {
			if !there[p.filterName()] {
				log.Printf("listener %s gets filter %s", one.Name, p.filterName())
				filters = append(filters, p.filter())
			}
		}
		manager.HttpFilters = append(filters, router)
		chain.Filters[at].ConfigType = &listener.Filter_TypedConfig{TypedConfig: packed(manager)}
	}
}

// leaveOut has each route ask no picker but its own pool's.
func leaveOut(configuration *route.RouteConfiguration, pools []pool) {
	disabled := packed(&extproc.ExtProcPerRoute{Override: &extproc.ExtProcPerRoute_Disabled{Disabled: true}})
	for _, host := range configuration.VirtualHosts {
		for _, one := range host.Routes {
			own, there := marked(one.Metadata)
			for _, p := range pools {
				if there && p.filterName() == own.filterName() {
					continue
				}
				if one.TypedPerFilterConfig == nil {
					one.TypedPerFilterConfig = map[string]*anypb.Any{}
				}
				one.TypedPerFilterConfig[p.filterName()] = disabled
			}
		}
	}
}

func chainsOf(one *listener.Listener) []*listener.FilterChain {
	chains := append([]*listener.FilterChain{}, one.FilterChains...)
	if one.DefaultFilterChain != nil {
		chains = append(chains, one.DefaultFilterChain)
	}
	return chains
}

// managerOf returns the HTTP connection manager of a chain and its place; nil where it has none.
func managerOf(chain *listener.FilterChain) (*hcm.HttpConnectionManager, int) {
	for at, filter := range chain.Filters {
		manager := &hcm.HttpConnectionManager{}
		if filter.Name == connectionManager && filter.GetTypedConfig().UnmarshalTo(manager) == nil {
			return manager, at
		}
	}
	return nil, -1
}
