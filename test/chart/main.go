// Command chart prints the plain manifest that the chart stands for.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// head stands above the manifest, for those who read it first.
const head = `# gpucdi on every node of a cluster: kubectl apply -f deploy/gpucdi.yaml
#
# A node without a GPU or without a driver just runs an idle agent that waits
# for one. The node's runtime must do CDI: containerd 2, containerd 1.7 with
# enable_cdi = true, or CRI-O.
#
# Made by make manifests from the Helm chart in deploy/gpucdi, with its defaults and the
# permissions that any config may require.
`

func main() {
	manifest, err := render(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(manifest)
}

// render returns what deploy/gpucdi.yaml holds. Its users edit the ConfigMap, so the agents
// are granted what any config may require.
func render(ctx context.Context) (string, error) {
	out, err := helm(ctx, "template", "gpucdi", "--namespace", "gpucdi", "--set", "createNamespace=true,watchNodes=true", "--no-hooks")
	return head + out, err
}

// helm runs a helm command on the chart, and returns what it printed.
func helm(ctx context.Context, command string, args ...string) (string, error) {
	dir, err := tools.Build(ctx, tools.Helm)
	if err != nil {
		return "", err
	}
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "helm"), append(append([]string{command}, args...), ".")...)
	cmd.Dir = filepath.Join(filepath.Dir(module), "deploy/gpucdi")
	cmd.Env = []string{"HOME=" + os.Getenv("HOME"), "PATH=" + os.Getenv("PATH")}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w\n%s", command, err, errs.String())
	}
	return out.String(), nil
}
