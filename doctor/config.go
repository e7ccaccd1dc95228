package doctor

import (
	"context"
	"fmt"
	"os"

	"github.com/gpucdi/gpucdi/config"
)

const (
	fixConfig = "fix the file: gpucdi config check names every problem of it, docs/configuration.md every key"
	fixLabels = "the service account may need the verb watch on nodes; deploy/ has the role"
)

// config reads the config as the agent does, and compares it with what the agent reports:
// a file that is valid here is worth nothing if the agent has not applied it.
func (e *examination) config(ctx context.Context) []Finding {
	const link = "config"
	file, err := config.Load(e.ConfigFile)
	if err != nil {
		return fail(link, err.Error(), fixConfig)
	}
	findings := e.applied(ctx, file)
	agent := e.status.Config
	switch {
	case e.statusErr != nil: // a finding of its own
	case agent.Trouble != "":
		findings = append(findings, fail(link, "the agent refused the file: "+agent.Trouble, fixConfig)...)
	case !sameFile(agent.Path, e.ConfigFile):
		findings = append(findings, warn(link, fmt.Sprintf("this check reads %s, and the agent %s", configName(e.ConfigFile), configName(agent.Path)),
			"pass the agent's file with --config")...)
	}
	if agent.LabelsTrouble != "" {
		findings = append(findings, fail(link, "in the agent, "+agent.LabelsTrouble, fixLabels)...)
	}
	if len(findings) > 0 {
		return findings
	}
	return pass(link, configName(e.ConfigFile)+" is valid")
}

// applied takes what the file says for this node as the settings for all other checks.
func (e *examination) applied(ctx context.Context, file *config.File) (findings []Finding) {
	const link = "config"
	node := config.Node{Name: e.Name}
	if file.ByLabels() {
		var err error
		if node.Labels, err = e.Labels(ctx); err != nil {
			findings = warn(link, fmt.Sprintf("sections that select by label are not evaluated here: %v", err), fixLabels)
		}
	}
	settings, err := file.For(node)
	if err != nil {
		return append(findings, fail(link, err.Error(), fixConfig)...)
	}
	e.settings = settings
	if section := file.Lacks(node); section != "" && file.ByLabels() {
		findings = append(findings, warn(link, fmt.Sprintf("the node's label %s names the section %q, which the file lacks", config.SectionLabel, section),
			"change the label, or add the section")...)
	}
	return findings
}

// sameFile reports whether two paths name one config, be one of them relative. Neither may be a
// file here: the agent may run in a container.
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
		return "no file (all defaults)"
	}
	return file
}
