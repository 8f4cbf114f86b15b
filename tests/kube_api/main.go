// The Kubernetes API for tests: kube-apiserver, kube-controller-manager or kube-proxy, by the name it is called by.
//
// With LBAGENT_ETCD_DIR and LBAGENT_ETCD_URL the API server brings its own etcd, which keeps its data in that folder. Nothing
// is synced to the disk: a killed process loses nothing by that, and the machine does not outlive a test.
package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
)

// serveEtcd starts etcd in this process and returns when it serves clients.
func serveEtcd(folder, address string) error {
	client, err := url.Parse(address)
	if err != nil {
		return err
	}
	peer := url.URL{Scheme: "unix", Host: "peer:0"} // a socket in the working directory: there are no peers
	config := embed.NewConfig()
	config.Dir = folder
	config.LogLevel = "error"
	config.UnsafeNoFsync = true
	config.ListenClientUrls = []url.URL{*client}
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = []url.URL{peer}
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	<-etcd.Server.ReadyNotify()
	return nil
}

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-apiserver":
		if folder := os.Getenv("LBAGENT_ETCD_DIR"); folder != "" {
			if err := serveEtcd(folder, os.Getenv("LBAGENT_ETCD_URL")); err != nil {
				fmt.Fprintln(os.Stderr, "etcd:", err)
				os.Exit(1)
			}
		}
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	default:
		fmt.Fprintln(os.Stderr, "call it kube-apiserver, kube-controller-manager or kube-proxy, not", name)
		os.Exit(2)
	}
}
