package doctor

import (
	"context"
	"fmt"
	"os"

	"github.com/gpucdi/gpucdi/config"
)

const (
	remedyConfig = "fix the file: gpucdi config check FILE lists all problems, and docs/configuration.md describes all keys"
	remedyLabels = "grant the service account the verb watch on nodes; see the ClusterRole in deploy/"
)

// config validates the config file, and checks that the agent has applied it.
func (e *examination) config(ctx context.Context) []Finding {
	const check = "config"
	file, err := config.Load(e.ConfigFile)
	if err != nil {
		return fail(check, err.Error(), remedyConfig)
	}
	findings := e.apply(ctx, file)
	agent := e.status.Config
	switch {
	case e.statusErr != nil: // reported by the agent check
	case agent.Error != "":
		findings = append(findings, fail(check, "the agent has not applied the file: "+agent.Error, remedyConfig)...)
	case !sameFile(agent.Path, e.ConfigFile):
		findings = append(findings, warn(check, fmt.Sprintf("this check reads %s, but the agent reads %s", configName(e.ConfigFile), configName(agent.Path)),
			"set --config to the file of the agent")...)
	}
	if agent.LabelsError != "" {
		findings = append(findings, fail(check, "the agent reports: "+agent.LabelsError, remedyLabels)...)
	}
	if len(findings) > 0 {
		return findings
	}
	if e.ConfigFile == "" {
		return pass(check, "no config file, all keys have defaults")
	}
	return pass(check, e.ConfigFile+" is valid")
}

// apply sets e.settings to the file's config for this node, for later checks.
func (e *examination) apply(ctx context.Context, file *config.File) (findings []Finding) {
	const check = "config"
	node := config.Node{Name: e.Name}
	if file.SelectsByLabel() {
		var err error
		if node.Labels, err = e.Labels(ctx); err != nil {
			findings = warn(check, fmt.Sprintf("sections that select by label are not checked: %v", err), remedyLabels)
		}
	}
	settings, err := file.For(node)
	if err != nil {
		return append(findings, fail(check, err.Error(), remedyConfig)...)
	}
	e.settings = settings
	if section := file.MissingSection(node); section != "" && file.SelectsByLabel() {
		findings = append(findings, warn(check, fmt.Sprintf("the node's label %s selects the section %q, which the file does not have", config.SectionLabel, section),
			"fix the label, or add the section")...)
	}
	return findings
}

// sameFile reports whether two paths, one of which may be relative, refer to the same file. Neither has to
// exist for this process: the agent may run in a container.
func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

func configName(file string) string {
	if file == "" {
		return "no file"
	}
	return file
}
