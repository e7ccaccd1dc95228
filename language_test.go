package gpucdi_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// phrases are banned from comments, messages, help and documents. Each has an example that it matches and the words to
// use instead. Where a single word has legitimate uses, such as in "gpucdi list" or "reading X: cause", only phrases
// are banned.
var phrases = []struct{ pattern, example, instead string }{
	{`mend(s|ed|ing)?`, "Mend the file", "fix, repair, restore"},
	{`heal(s|ed|ing)`, "the GPU heals", "recover"},
	{`(cut|made|written|read) anew|anew`, "is cut anew", "repartition, recreate, again"},
	{`cut into`, "a GPU that is cut into parts", "partitioned"},
	{`tells? (of|about|that|what|which|how|whether|why)`, "NVML tells of it", "report"},
	{`is told|are told|was told|were told`, "the kubelet is told", "is advertised, receives, logs"},
	{`says (that|what|which|how|whether|why|so|nothing|of)`, "the log says what", "report, log, state"},
	{`what .{1,20} (says|tells|hears)`, "what the driver says", "the report of, the output of"},
	{`hears?|heard`, "what is heard", "receive"},
	{`speaks? against`, "what speaks against a GPU", "fault"},
	{`keeps? silent`, "NVML keeps silent", "does not report"},
	{`who asks|who wants|for who`, "for who asks", "callers, users, to do X"},
	{`whoever|nobody knows`, "whoever holds it", "holder, unknown"},
	{`looks? (at|into|for what)`, "looks at the node", "inspect, check, probe"},
	{`knows? (of|about|that|what|which|how|whether|no|nothing)`, "the agent knows what", "track, support, detect"},
	{`as (it|they) (comes?|should be)`, "as it should be", "by default, correct, up to date"},
	{`put right`, "what is put\n\t// right", "reconcile, restore"},
	{`(give|gives|given|giving) out`, "is given out", "allocate, advertise"},
	{`be it`, "be it a file", "whether"},
	{`by turns`, "compute by turns", "take turns, time-slice"},
	{`sick`, "a sick GPU", "unhealthy, faulty"},
	{`doubt(s|ed|ful)?`, "a GPU in doubt", "quarantine, unknown"},
	{`go(es)? round`, "the loop goes round", "reconcile, iterate"},
	{`lets go of|let go of`, "lets go of it", "release, prune"},
	{`stands? (behind|beside|between)`, "what stands behind it", "follows, runs alongside"},
	{`of nvidia's, (a|the)`, "Of NVIDIA's, a node needs", "subject first"},
	{`without a word`, "ignores it without a word", "silently"},
	{`by the .{1,20} word`, "by the kubelet's word", "according to"},
	{`is nothing for`, "is nothing for pods", "not supported for"},
}

// TestLanguage checks that no text of the repository contains a banned phrase.
func TestLanguage(t *testing.T) {
	var patterns []string
	for _, p := range phrases {
		if !matches(p.pattern, p.example) {
			t.Fatalf("%q does not match its example %q", p.pattern, p.example)
		}
		patterns = append(patterns, p.pattern)
	}
	banned := regexp.MustCompile(word(strings.Join(patterns, "|")))
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist", "testdata"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if path == "language_test.go" || !isText(entry.Name()) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = bytes.ToLower(text)
		for _, at := range banned.FindAllIndex(text, -1) {
			match := string(text[at[0]:at[1]])
			for _, p := range phrases {
				if matches(p.pattern, match) {
					t.Errorf("%s:%d: %q; write: %s", path, 1+bytes.Count(text[:at[0]], []byte("\n")), match, p.instead)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// word returns an expression for a pattern in lower-case text, which also matches across lines of a text or comment.
func word(pattern string) string {
	return `(?s)\b(?:` + strings.ReplaceAll(pattern, " ", `\s+(?:(?://|#)\s*)?`) + `)\b`
}

func matches(pattern, text string) bool {
	return regexp.MustCompile(word(pattern)).MatchString(strings.ToLower(text))
}

func isText(name string) bool {
	return slices.Contains([]string{".go", ".md", ".yaml", ".yml", ".json", ".c", ".h", ".sh", ".tpl"}, filepath.Ext(name)) ||
		name == "Makefile" || name == "Dockerfile" || name == "NOTES.txt"
}
