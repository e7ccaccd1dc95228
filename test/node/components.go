package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// startControlPlane starts etcd, the API server, the controller manager and the scheduler.
func (n *Node) startControlPlane(ctx context.Context) error {
	err := n.start(ctx, "etcd", "--data-dir", "/var/lib/etcd", "--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn",
		"--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
		"--initial-cluster", "default=http://127.0.0.1:2380")
	if err != nil {
		return err
	}
	if err := n.startAPIServer(ctx); err != nil {
		return err
	}
	if err := n.expose(ctx); err != nil {
		return err
	}
	if err := n.awaitAPIServer(ctx); err != nil {
		return err
	}
	err = n.start(ctx, "kube-controller-manager", "--kubeconfig", etc+"/controller-manager.conf", "--leader-elect=false",
		"--use-service-account-credentials", "--root-ca-file", etc+"/ca.crt",
		"--service-account-private-key-file", etc+"/sa.key", "--allocate-node-cidrs=false")
	if err != nil {
		return err
	}
	return n.start(ctx, "kube-scheduler", "--kubeconfig", etc+"/scheduler.conf", "--leader-elect=false")
}

func (n *Node) awaitAPIServer(ctx context.Context) error {
	return n.await(ctx, "the API server", func(ctx context.Context) error {
		_, err := n.Kubectl(ctx, "get", "--raw", "/readyz")
		return err
	}, "etcd", "kube-apiserver")
}

func (n *Node) startAPIServer(ctx context.Context) error {
	return n.start(ctx, "kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379",
		"--advertise-address", nodeIP, "--secure-port", "443", "--service-cluster-ip-range", serviceCIDR,
		"--tls-cert-file", etc+"/apiserver.crt", "--tls-private-key-file", etc+"/apiserver.key",
		"--client-ca-file", etc+"/ca.crt", "--authorization-mode", "Node,RBAC", "--allow-privileged",
		"--kubelet-client-certificate", etc+"/apiserver-kubelet.crt", "--kubelet-client-key", etc+"/apiserver-kubelet.key",
		"--kubelet-preferred-address-types", "InternalIP",
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", etc+"/sa.key", "--service-account-signing-key-file", etc+"/sa.key")
}

// StartAPIServer starts the API server after it was killed, and waits until it is ready.
func (n *Node) StartAPIServer(ctx context.Context) error {
	if err := n.startAPIServer(ctx); err != nil {
		return err
	}
	return n.awaitAPIServer(ctx)
}

// startNode starts the kubelet and waits until pods can be created.
func (n *Node) startNode(ctx context.Context) error {
	if err := n.StartKubelet(ctx); err != nil {
		return err
	}
	if err := n.WaitReady(ctx); err != nil {
		return err
	}
	return n.await(ctx, "the default service account", func(ctx context.Context) error {
		_, err := n.Kubectl(ctx, "get", "serviceaccount", "default")
		return err
	}, "kube-controller-manager")
}

// StartKubelet starts the kubelet. It does not wait for the node to be Ready.
func (n *Node) StartKubelet(ctx context.Context) error {
	return n.start(ctx, "kubelet", "--config", etc+"/kubelet.yaml", "--kubeconfig", etc+"/kubelet.conf",
		"--root-dir", n.kubeletDir,
		"--hostname-override", Name, "--node-ip", nodeIP)
}

// KubeletDir returns the kubelet's root directory in the box.
func (n *Node) KubeletDir() string { return n.kubeletDir }

// StopKubelet sends SIGTERM to the kubelet and waits until it has exited. Pods keep running.
func (n *Node) StopKubelet(ctx context.Context) error { return n.stop(ctx, "kubelet") }

// RestartKubelet stops the kubelet and starts it again.
func (n *Node) RestartKubelet(ctx context.Context) error {
	if err := n.StopKubelet(ctx); err != nil {
		return err
	}
	return n.StartKubelet(ctx)
}

// WaitReady waits until the kubelet is healthy and the node is Ready and schedulable.
func (n *Node) WaitReady(ctx context.Context) error {
	return n.await(ctx, "the node to be Ready", func(ctx context.Context) error {
		// The node's status stays Ready for some time after a kubelet has exited.
		if _, err := n.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+Name+"/proxy/healthz"); err != nil {
			return err
		}
		out, err := n.Kubectl(ctx, "get", "node", Name, "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")]}{"\n"}{.spec.taints}`)
		if err != nil {
			return err
		}
		condition, taints, _ := strings.Cut(string(out), "\n")
		if !strings.Contains(condition, `"status":"True"`) || strings.Contains(taints, "not-ready") {
			return errors.New(string(out))
		}
		return nil
	}, "kubelet", "kube-controller-manager")
}

// Log returns the log of a component so far. component is the name of its program.
func (n *Node) Log(component string) (string, error) {
	data, err := os.ReadFile(n.logs + "/" + component + ".log")
	if err != nil {
		return "", fmt.Errorf("reading the log of %s: %w", component, err)
	}
	return string(data), nil
}
