// An extension of a real kubelet, as small as they come: a device plugin with one device, or a storage driver that is
// registered and stores nothing. It registers again when the kubelet has forgotten it.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	devices "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const kubelet = "/var/lib/kubelet"

func main() {
	if len(os.Args) != 3 {
		log.Fatalf("usage: %s device|driver NAME", os.Args[0])
	}
	name := os.Args[2]
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	switch os.Args[1] {
	case "device":
		device(name, end)
	case "driver":
		driver(name, end)
	default:
		log.Fatalf("%s: device or driver", os.Args[1])
	}
}

// Serves until the server is stopped. The socket goes with it.
func serve(server *grpc.Server, socket string) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		log.Fatal(err)
	}
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Fatal(err)
		}
	}()
}

type plugin struct {
	devices.UnimplementedDevicePluginServer
}

func (plugin) GetDevicePluginOptions(context.Context, *devices.Empty) (*devices.DevicePluginOptions, error) {
	return &devices.DevicePluginOptions{}, nil
}

func (plugin) ListAndWatch(_ *devices.Empty, stream grpc.ServerStreamingServer[devices.ListAndWatchResponse]) error {
	one := &devices.Device{ID: "one", Health: devices.Healthy}
	if err := stream.Send(&devices.ListAndWatchResponse{Devices: []*devices.Device{one}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (plugin) Allocate(_ context.Context, asked *devices.AllocateRequest) (*devices.AllocateResponse, error) {
	answer := &devices.AllocateResponse{}
	for range asked.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &devices.ContainerAllocateResponse{})
	}
	return answer, nil
}

func device(resource string, end <-chan os.Signal) {
	folder := kubelet + "/device-plugins"
	socket := folder + "/" + filepath.Base(resource) + ".sock"
	for {
		server := grpc.NewServer()
		devices.RegisterDevicePluginServer(server, plugin{})
		serve(server, socket)
		if err := register(folder+"/kubelet.sock", filepath.Base(socket), resource); err != nil {
			log.Printf("cannot register %s: %v", resource, err)
		} else {
			log.Printf("registered %s", resource)
		}
		// A kubelet that starts removes all sockets of device plugins.
		for exists(socket) {
			select {
			case <-end:
				server.Stop()
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
		server.Stop()
	}
}

func register(at, endpoint, resource string) error {
	client, err := grpc.NewClient("unix://"+at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer client.Close()
	deadline, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request := &devices.RegisterRequest{Version: devices.Version, Endpoint: endpoint, ResourceName: resource}
	_, err = devices.NewRegistrationClient(client).Register(deadline, request, grpc.WaitForReady(true))
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

type storage struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedIdentityServer
	registration.UnimplementedRegistrationServer
	name, socket string
}

func (it storage) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-of-" + it.name}, nil
}

func (it storage) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: it.name, VendorVersion: "1"}, nil
}

func (it storage) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: it.name, Endpoint: it.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (it storage) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		return nil, fmt.Errorf("the kubelet refused: %s", status.Error)
	}
	log.Printf("registered %s", it.name)
	return &registration.RegistrationStatusResponse{}, nil
}

func driver(name string, end <-chan os.Signal) {
	it := storage{name: name, socket: kubelet + "/plugins/" + name + "/csi.sock"}
	driver, registrar := grpc.NewServer(), grpc.NewServer()
	csi.RegisterNodeServer(driver, it)
	csi.RegisterIdentityServer(driver, it)
	registration.RegisterRegistrationServer(registrar, it)
	serve(driver, it.socket)
	serve(registrar, kubelet+"/plugins_registry/"+name+"-reg.sock")
	<-end
	registrar.Stop()
	driver.Stop()
}
