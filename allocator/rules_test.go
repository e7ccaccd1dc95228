package allocator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mutants are the rules of the ledger, each with its «code» in context and the code that disables it. The model must
// fail without the rule, which shows that the rule is necessary and that the model covers it.
var mutants = []struct {
	name, file, code, without string
}{
	// Overlap.
	{"entries wait for overlapping ones", "next.go", "return «n.used.fits(e.Part)»\n\t}\n", "true"},
	{"a MIG device overlaps its GPU", "part.go", "case «p.Extent == ExtentWhole || q.Extent == ExtentWhole»:", "false"},
	{"MIG devices overlap by placement", "part.go", "«a.Start < b.Start+b.Size && b.Start < a.Start+a.Size»", "false"},
	{"MIG devices overlap by instance", "part.go", "«p.ComputeInstance == q.ComputeInstance»", "p.Placement == q.Placement"},
	{"shares add up", "usage.go", "«c.units+p.Share.units() > wholeDevice»", "false"},
	{"an unknown part overlaps all", "part.go", `«p.GPU == q.GPU || p.GPU == "" || q.GPU == ""»`, "false"},
	{"another share size is another part", "next.go", "same := «wanted && w.Part == e.Part»", "wanted"},

	// The gate.
	{"the gate refuses unavailable entries", "gate.go", "«!d.open»", "false"},
	{"closing compares grants", "gate.go", "«d.grant.Seq != c.Seq»", "false"},
	{"an entry waits for its spec", "next.go", "«!w.Ready»", "false"},

	// The release.
	{"a granted entry needs proof", "release.go", "(«!e.dirty» ||", "true"},
	{"an advertised entry needs proof", "release.go", "if «n.unheld(e)» {\n\t\te.dirty", "n.o.Runtime != nil"},
	{"a grant invalidates the proof", "next.go", "e.unrecorded = g.Seq, g.Last, true, «time.Time{}»", "e.unrecorded"},
	{"the checkpoint is later than the record of a grant", "release.go", "last.Add(«2 * settle»)", "settle"},
	{"a checkpoint may be as old as the last reading of another version", "release.go", "c.Version, «n.checkpoint.requested»", "c.Requested"},
	{"the checkpoint lacks the entry", "release.go", "&& «!n.held[e.Key]»", "true"},
	{"the runtime is queried", "release.go", "«!n.running(e)»", "true"},
	{"the runtime is queried for containers", "release.go", "|| «n.stray(e.Part)» || slices", "false"},
	{"the runtime is queried for sandboxes", "release.go", "ContainsFunc(«e.pods», r.ready)", "nil"},
	{"the runtime is queried after the checkpoint", "release.go", "return «e.unrecorded.Add(settle)»\n", "e.unrecorded"},
	{"containers of other shares do not count", "release.go", "«!n.explained(c)»", "true"},

	// The kubelet's list.
	{"a released ID stays listed", "next.go", "«e.released.Add(listLag + settle)»", "e.released"},
	{"a released ID stays listed for listLag", "next.go", "«e.released.Add(listLag + settle)»", "e.released.Add(settle)"},
	{"an advertised ID is not dropped while it waits", "next.go", "e.State = «StateReleased»\n\t\t}\n\t}", `State("")`},

	// The start.
	{"grants are inherited", "saved.go", "dirty: «true»", "false"},
	{"inherited grants end at the start", "saved.go", "last: «now»", "time.Time{}"},
	{"a start without state waits for evidence", "saved.go", "pending: «saved == nil || !saved.Complete»", "false"},
	{"a start with incomplete state waits for evidence", "saved.go", "pending: «saved == nil || !saved.Complete»", "saved == nil"},
	{"an ID is saved while the kubelet may list it", "saved.go", "«e.released.IsZero()»", "true"},
	{"only advertised IDs are available without state", "next.go", "n.bootstrap.pending && «!n.advertised(e.Key)»", "false"},
	{"a checkpoint proves grants", "release.go", "«e.State != StateWaiting || !e.released.IsZero()»", "true"},
	{"the checkpoint contains the grants of the earlier agent", "release.go", "«b.fresh || n.written(n.start)»", "true"},
	{"a start queries the runtime", "release.go", "b.unrecorded.IsZero() || «n.o.Runtime == nil || n.o.Runtime.Requested.Before(b.unrecorded.Add(n.margin()))»", "false"},
	{"a start waits for containers", "next.go", "«n.stray(e.Part)»", "false"},
	{"a start with state queries the runtime", "release.go", "«n.o.Runtime == nil» || slices", "false"},
	{"a list waits for the kubelet's records", "ledger.go", "return «start.Add(settle)»", "start"},
	{"a list waits for the checkpoint", "ledger.go", "«l.checkpoint.readSince(l.bootstrap.from(l.start))»", "true"},

	{"advertised IDs are tracked without state", "release.go", "if «n.bootstrap.pending» {\n\t\tfor k", "false"},
	{"an unknown ID was granted up to the start", "release.go", "dirty: true, last: «n.start»", "time.Time{}"},
	{"advertised IDs are available once lists may be sent", "release.go", "return «n.MayList()» &&", "true"},

	// Claims.
	{"a claim waits for containers of the previous one", "claim.go", "return «!d.entry.dirty» &&", "true"},
	{"a claim waits for a ledger with the last grant", "claim.go", "&& «d.grant.Seq == d.entry.seq» }", "true"},
	{"the gate prepares available entries only", "claim.go", "if «!d.open» {", "false"},
	{"a runtime that was queried before a claim was unprepared proves nothing", "release.go", "return «e.unrecorded.Add(1)»\n", "e.unrecorded"},
	{"the container of a claim holds no other entry", "release.go", "|| «n.hasDevice(claim, c)»", "false"},
	{"an allocated device of the slice is not released", "release.go", "&& «a.Claims[e.ID] == \"\"» &&", "true"},
	{"claims are queried after schedulers have received the slices", "release.go", "&& «!a.Requested.Before(e.unselected())»", "true"},
	{"claims are adopted without state", "release.go", "for i, id := range «c.Devices» {\n\t\t\tadopt", "nil"},
	{"a prepared claim is prepared again", "claim.go", "g.claims[c.UID]; «found» {", "false"},
	{"a pod may have joined a claim", "release.go", "|| «n.joined(e.joins)»\n", "false"},
	{"pods that joined a claim are known", "claim.go", "c.Pods = «withPods(c.Pods, pods[uid])»", "c.Pods"},
	{"pods that joined a claim are known at its end", "claim.go", "Pods: «c.Pods», Joins", "nil"},
	{"pods that joined a claim are known after its end", "ended.go", "e.addPods(«c.Pods»)", "nil"},
	{"a pod may have left a claim just before a read", "claim.go", "!«g.reads[0].done.Add(settle)».After(now)", "g.reads[0].done"},
	{"a pod may have left a claim just before an earlier read", "claim.go", "«!now.Before(g.reads[0].done.Add(settle))» {", "true"},
	{"a pod may have joined a claim when the records were read", "ended.go", "«!created.Before(j.From)»", "created.After(j.From)"},
	{"a pod may have joined a claim at its end", "ended.go", "«!created.After(j.Until)»", "created.Before(j.Until)"},
	{"a container of a pod that joined a claim appears after its end", "ended.go", "Requested.Before(«j.visibleAt()»)", "j.Until"},
	{"a pod may have joined a claim of an earlier agent", "saved.go", "Joins: «Joins{Until: now}»", "Joins{}"},

	// Claims that share a GPU.
	{"claims add up", "claim.go", "case «total.within(capacity)»:", "true"},
	{"a share waits for containers of a claim that ended", "claim.go", "slices.Concat(«d.entry.ended», ", "nil"},
	{"a share waits for a ledger with the last ended claim", "claim.go", "slices.Concat(d.entry.ended, «d.unobserved()»)", "nil"},
	{"the runtime is queried after a claim has ended", "ended.go", "|| «!r.Requested.After(c.At)» ||", "false"},
	{"a share waits for containers without a claim", "ended.go", "|| «n.stray(e.Part)» ||", "false"},
	{"a share waits for sandboxes without a claim", "ended.go", "slices.ContainsFunc(«c.Pods», r.ready)", "nil"},
	{"a pod may have joined a claim for a share", "ended.go", "|| «n.joined(c.Joins)» ||", "false"},
	{"an earlier agent's claims may have ended", "saved.go", "if «e.sliced()» {\n\t\t\te.claimEnded", "false"},
	{"claims may have ended while an entry was withdrawn", "next.go", "if «e.State != StateAvailable && e.dirty» {", "false"},

	// The requests.
	{"the kubelet is queried for pods", "todo.go", "t.Pods = «pods == nil || t.poll(pods.Requested) || t.Pods»", "false"},
	{"a list is sent again", "todo.go", "t.Resend = «t.stream()»", `""`},
	{"the runtime is queried again", "todo.go", "«r == nil || r.Requested.Before(after) || t.poll(r.Requested)»", "r == nil"},
}

const (
	ruleSequences   = 50_000 // with all rules, from a random seed
	mutantSequences = 40_000 // at most per mutant, from mutantSeed
	mutantSeed      = 1
)

// TestRules builds the tests of this package with a switch at each rule, without the race detector. The model must hold
// with all rules, and fail with each one disabled.
func TestRules(t *testing.T) {
	binary := buildMutants(t)
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		cmd := exec.Command(binary, "-test.v", "-test.run=^TestModel$")
		cmd.Env = append(os.Environ(), "LEDGER_MUTANT=0", fmt.Sprintf("MODEL_SEQUENCES=%d", ruleSequences))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	for i, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			test, script := "^TestModel$", scripts[m.name]
			if script != "" {
				test = "^TestScripts$/^" + strings.ReplaceAll(m.name, " ", "_") + "$"
			}
			cmd := exec.Command(binary, "-test.v", "-test.run="+test)
			cmd.Env = append(os.Environ(), fmt.Sprintf("LEDGER_MUTANT=%d", i+1), fmt.Sprintf("MODEL_SEED=%d", mutantSeed),
				fmt.Sprintf("MODEL_SEQUENCES=%d", mutantSequences), "GOMAXPROCS=1")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Errorf("the model holds without the rule %q in %s:\n%s", m.code, m.file, out)
			}
			if !strings.Contains(string(out), "--- FAIL: Test") || strings.Contains(string(out), "panic:") {
				t.Errorf("the mutant did not run, or crashed: %s", out)
			}
			t.Logf("%s", firstLines(string(out), 3))
		})
	}
}

func firstLines(s string, n int) string {
	lines := strings.SplitAfterN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "")
}

// withSwitches returns the source of a file with a switch at each of its rules.
func withSwitches(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	source := string(text)
	type edit struct{ at, mutant int }
	var edits []edit
	for i, m := range mutants {
		if m.file != file {
			continue
		}
		context := strings.NewReplacer("«", "", "»", "").Replace(m.code)
		if found := strings.Count(source, context); found != 1 {
			t.Fatalf("%s contains %q %d times, want once; update mutants", file, context, found)
		}
		edits = append(edits, edit{strings.Index(source, context) + strings.Index(m.code, "«"), i})
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(a.mutant, b.mutant)) })
	for i, e := range edits {
		m := mutants[e.mutant]
		_, rest, _ := strings.Cut(m.code, "«")
		rule, _, _ := strings.Cut(rest, "»")
		if i > 0 && edits[i-1].at == e.at { // two mutants of one rule
			rule = source[e.at : e.at+strings.Index(source[e.at:], switchEnd)+len(switchEnd)]
		}
		source = source[:e.at] + fmt.Sprintf("mutate(%d, %s, %s%s", e.mutant+1, m.without, rule, switchEnd) + source[e.at+len(rule):]
	}
	return source
}

// switchEnd ends a switch; its comment is unique.
const switchEnd = " /* rule */)"

// buildMutants compiles the tests of this package with all mutants.
func buildMutants(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	sources := map[string]string{"mutate.go": `package allocator

import "os"

func mutate[T any](mutant int, without, with T) T {
	if active == mutant {
		return without
	}
	return with
}

var active = func() (n int) {
	for _, digit := range os.Getenv("LEDGER_MUTANT") {
		n = 10*n + int(digit-'0')
	}
	return n
}()
`}
	for _, m := range mutants {
		if sources[m.file] == "" {
			sources[m.file] = withSwitches(t, m.file)
		}
	}
	overlay := map[string]string{}
	for name, source := range sources {
		original, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		overlay[original] = filepath.Join(dir, name)
		if err := os.WriteFile(overlay[original], []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replaced, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	file, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "model.test")
	if err := os.WriteFile(file, replaced, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "test", "-c", "-race=false", "-vet=off", "-overlay", file, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("building the mutants: %v\n%s", err, out)
	}
	return binary
}
