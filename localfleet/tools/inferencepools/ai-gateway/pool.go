package main

import (
	"encoding/json"
	"fmt"
	"log"
	"strconv"
	"strings"
	"time"

	extension "github.com/envoyproxy/gateway/proto/extension"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tls "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreams "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	poolVersion     = "inference.networking.k8s.io/v1"
	bodyMode        = "aigateway.envoyproxy.io/processing-body-mode"
	modeOverride    = "aigateway.envoyproxy.io/allow-mode-override"
	metadataOfOurs  = "aigateway.envoy.io"
	metadataOfPool  = "per_route_rule_inference_pool"
	httpOptions     = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	defaultPort     = 9002
	pickerTimeout   = 300 * time.Second
	connectTimeout  = 10 * time.Second
	chosenHeader    = "x-gateway-destination-endpoint"
	partsOfMetadata = 6
)

// pool is what an InferencePool says of its picker. It travels in the metadata of routes and clusters.
type pool struct {
	namespace, name, picker, port, body, override string
}

// poolsIn returns the InferencePools among the objects that a route leads to.
func poolsIn(resources []*extension.ExtensionResource) []pool {
	var found []pool
	for _, resource := range resources {
		var read struct {
			APIVersion, Kind string
			Metadata         struct {
				Namespace, Name string
				Annotations     map[string]string
			}
			Spec struct {
				EndpointPickerRef struct {
					Name string
					Port *struct{ Number int }
				}
			}
		}
		if err := json.Unmarshal(resource.UnstructuredBytes, &read); err != nil {
			log.Printf("an object is left out: %v", err)
			continue
		}
		if read.APIVersion != poolVersion || read.Kind != "InferencePool" {
			continue
		}
		port := defaultPort
		if asked := read.Spec.EndpointPickerRef.Port; asked != nil {
			port = asked.Number
		}
		one := pool{
			read.Metadata.Namespace, read.Metadata.Name, read.Spec.EndpointPickerRef.Name, strconv.Itoa(port), "duplex", "false",
		}
		if mode, there := read.Metadata.Annotations[bodyMode]; there {
			one.body = mode
		}
		if override, there := read.Metadata.Annotations[modeOverride]; there {
			one.override = override
		}
		found = append(found, one)
	}
	return found
}

// mark writes the pool into metadata; where there is none it is written nowhere.
func (p pool) mark(metadata *core.Metadata) {
	if metadata == nil {
		return
	}
	if metadata.FilterMetadata == nil {
		metadata.FilterMetadata = map[string]*structpb.Struct{}
	}
	ours := metadata.FilterMetadata[metadataOfOurs]
	if ours == nil || ours.Fields == nil {
		ours = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		metadata.FilterMetadata[metadataOfOurs] = ours
	}
	text := strings.Join([]string{p.namespace, p.name, p.picker, p.port, p.body, p.override}, "/")
	ours.Fields[metadataOfPool] = structpb.NewStringValue(text)
}

// marked returns the pool that metadata names.
func marked(metadata *core.Metadata) (pool, bool) {
	text := metadata.GetFilterMetadata()[metadataOfOurs].GetFields()[metadataOfPool].GetStringValue()
	parts := strings.Split(text, "/")
	if len(parts) != partsOfMetadata {
		return pool{}, false
	}
	return pool{parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]}, true
}

func (p pool) clusterName() string {
	return fmt.Sprintf("envoy.clusters.endpointpicker_%s_%s_ext_proc", p.name, p.namespace)
}

func (p pool) filterName() string {
	return fmt.Sprintf("envoy.filters.http.ext_proc/endpointpicker/%s_%s_ext_proc", p.name, p.namespace)
}

func (p pool) host() string { return fmt.Sprintf("%s.%s.svc", p.picker, p.namespace) }

// cluster returns how Envoy reaches the picker: by name, TLS with whatever certificate, HTTP/2.
func (p pool) cluster() *cluster.Cluster {
	port, _ := strconv.ParseUint(p.port, 10, 16)
	socket := &core.SocketAddress{
		Address: p.host(), PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(port)},
	}
	at := &endpoint.Endpoint{Address: &core.Address{Address: &core.Address_SocketAddress{SocketAddress: socket}}}
	member := &endpoint.LbEndpoint{
		HealthStatus: core.HealthStatus_HEALTHY, HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: at},
	}
	common := &tls.CommonTlsContext{ValidationContextType: &tls.CommonTlsContext_ValidationContext{}}
	secured := packed(&tls.UpstreamTlsContext{CommonTlsContext: common})
	http2 := &upstreams.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
		Http2ProtocolOptions: &core.Http2ProtocolOptions{},
	}
	explicit := &upstreams.HttpProtocolOptions_ExplicitHttpConfig{ProtocolConfig: http2}
	options := &upstreams.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreams.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit},
	}
	return &cluster.Cluster{
		Name:                 p.clusterName(),
		ConnectTimeout:       durationpb.New(connectTimeout),
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_STRICT_DNS},
		LbPolicy:             cluster.Cluster_LEAST_REQUEST,
		TransportSocket: &core.TransportSocket{
			Name:       "envoy.transport_sockets.tls",
			ConfigType: &core.TransportSocket_TypedConfig{TypedConfig: secured},
		},
		LoadAssignment: &endpoint.ClusterLoadAssignment{
			ClusterName: p.clusterName(),
			Endpoints:   []*endpoint.LocalityLbEndpoints{{LbEndpoints: []*endpoint.LbEndpoint{member}}},
		},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{httpOptions: packed(options)},
	}
}

// filter returns what has Envoy ask the picker of each request. The pool's failureMode changes nothing about it.
func (p pool) filter() *hcm.HttpFilter {
	body := extproc.ProcessingMode_FULL_DUPLEX_STREAMED
	if p.body == "buffered" {
		body = extproc.ProcessingMode_BUFFERED
	}
	picker := &core.GrpcService_EnvoyGrpc{ClusterName: p.clusterName(), Authority: p.host() + ":" + p.port}
	asked := &extproc.ExternalProcessor{
		GrpcService: &core.GrpcService{TargetSpecifier: &core.GrpcService_EnvoyGrpc_{EnvoyGrpc: picker}},
		ProcessingMode: &extproc.ProcessingMode{
			RequestHeaderMode: extproc.ProcessingMode_SEND, ResponseHeaderMode: extproc.ProcessingMode_SEND,
			RequestBodyMode: body, ResponseBodyMode: body,
			RequestTrailerMode: extproc.ProcessingMode_SEND, ResponseTrailerMode: extproc.ProcessingMode_SEND,
		},
		AllowModeOverride: p.override == "true",
		MessageTimeout:    durationpb.New(pickerTimeout),
		FailureModeAllow:  false,
	}
	return &hcm.HttpFilter{Name: p.filterName(), ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: packed(asked)}}
}

func packed(message proto.Message) *anypb.Any {
	result, err := anypb.New(message)
	if err != nil {
		panic(err)
	}
	return result
}
