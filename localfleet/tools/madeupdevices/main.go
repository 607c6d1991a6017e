// A DRA driver of devices that do not exist, for nodes with real kubelets: what it publishes the scheduler allocates, and
// a container that gets one finds it in a variable, as CDI gives it: DEVICE_GPU_3=NODE/gpu-3.
//
//	madeupdevices -driver gpu.nvidia.com -node NODE -devices FILE
//
// FILE has a list of devices as a ResourceSlice has them.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const cdiFolder = "/var/run/cdi"

type plugin struct {
	driver string
	end    context.CancelFunc
}

func main() {
	driver := flag.String("driver", "", "name of the driver")
	node := flag.String("node", "", "name of the node")
	file := flag.String("devices", "", "file with the devices")
	flag.Parse()
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer end()
	if err := serve(ctx, &plugin{*driver, end}, *node, *file); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, p *plugin, node, file string) error {
	var devices []resource.Device
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &devices); err != nil {
		return err
	}
	if err := p.describe(node, devices); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(kubeletplugin.KubeletPluginsDir, p.driver), 0o750); err != nil {
		return err
	}
	access, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, p,
		kubeletplugin.DriverName(p.driver), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(client))
	if err != nil {
		return err
	}
	defer helper.Stop()
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	published := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
	if err := helper.PublishResources(ctx, published); err != nil {
		return err
	}
	log.Printf("%d devices of %s on %s", len(devices), p.driver, node)
	<-ctx.Done()
	return nil
}

// describe tells the container runtime, once, what each device does to a container.
func (p *plugin) describe(node string, devices []resource.Device) error {
	type edits struct {
		Env []string `json:"env"`
	}
	type device struct {
		Name  string `json:"name"`
		Edits edits  `json:"containerEdits"`
	}
	described := []device{}
	for _, one := range devices {
		variable := "DEVICE_" + strings.ToUpper(strings.ReplaceAll(one.Name, "-", "_"))
		described = append(described, device{one.Name, edits{[]string{variable + "=" + node + "/" + one.Name}}})
	}
	content, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": p.kind(), "devices": described})
	if err != nil {
		return err
	}
	name := filepath.Join(cdiFolder, p.driver+".json")
	if err := os.WriteFile(name+".new", content, 0o644); err != nil { // who reads the folder heeds *.json alone
		return err
	}
	return os.Rename(name+".new", name)
}

func (p *plugin) kind() string { return p.driver + "/device" }

func (p *plugin) PrepareResourceClaims(
	_ context.Context, claims []*resource.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var result kubeletplugin.PrepareResult
		for _, got := range claim.Status.Allocation.Devices.Results {
			if got.Driver == p.driver {
				result.Devices = append(result.Devices, kubeletplugin.Device{
					Requests: []string{got.Request}, PoolName: got.Pool, DeviceName: got.Device,
					CDIDeviceIDs: []string{p.kind() + "=" + got.Device},
				})
			}
		}
		prepared[claim.UID] = result
	}
	return prepared, nil
}

// UnprepareResourceClaims has nothing to undo: what is described stays, whoever has it.
func (p *plugin) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	undone := map[types.UID]error{}
	for _, claim := range claims {
		undone[claim.UID] = nil
	}
	return undone, nil
}

func (p *plugin) HandleError(_ context.Context, err error, message string) {
	log.Printf("%s: %v", message, err)
}
