package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	nodebox "github.com/gpucdi/gpucdi/test/node"
)

const (
	// draRounds is the number of turns of each side. Each turn measures draPods pods, one at a time.
	draRounds, draPods = 5, 4
	// claimReads is the number of GETs of each claim, each after readPause: the agent sends its GET after a pause, too, and
	// in immediate succession they would take less time.
	claimReads, readPause = 5, 200 * time.Millisecond
)

// onDRANode performs measurements on a new node, one after the other.
func (b *bench) onDRANode(measurements ...func(context.Context, *draNode) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		ctx, cancel := context.WithCancel(ctx) // ends the watch
		defer cancel()
		n, err := b.startDRANode(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, n.close()) }()
		for _, measure := range measurements {
			if err := measure(ctx, n); err != nil {
				return err
			}
		}
		return nil
	}
}

// A side is a stack with its measurements.
type side struct {
	stack           stack
	pods            []time.Duration // from the creation of a pod to the start of its container
	calls           []time.Duration // of the kubelet to a DRA driver: NodePrepareResources
	prepares, reads []time.Duration // of claims, in the agent: NodePrepareResources, and GETs
	memory          []memory        // after each turn
}

// claims measures pods and their claims, with and without DRA and with NVIDIA's DRA driver in turn.
func (b *bench) claims(ctx context.Context, n *draNode) error {
	sides := []*side{{stack: withDRA()}, {stack: withoutDRA()}, {stack: nvidiaDRA()}}
	if err := n.turns(ctx, sides); err != nil {
		return err
	}
	claims, plain := sides[0], sides[1]
	if err := b.compareClaims(claims, sides[2]); err != nil {
		return err
	}
	used := medianMemory(plain.memory)
	b.draTable.add("NodePrepareResources, 1 GPU", beyond(claims.prepares, claims.reads), figure{}, atMost("+1 ms", time.Millisecond))
	b.draTable.add("pod with a claim for 1 GPU", typical(claims.pods), typical(plain.pods), none)
	// The other side has no value, since the ratio of an increase to a total is meaningless.
	b.draTable.add(fmt.Sprintf("resident after %d claims", draPods+1), medianMemory(claims.memory).beyond(used), figure{text: used.figure().text},
		target{text: "+5 MB", value: 5})
	return nil
}

// turns lets the sides take turns; each round begins with another side.
func (n *draNode) turns(ctx context.Context, sides []*side) error {
	for i := range draRounds {
		for j := range sides {
			s := sides[(i+j)%len(sides)]
			if err := n.turn(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s.stack.name, err)
			}
		}
	}
	return nil
}

// turn starts pods one after the other, the first of which is not measured.
func (n *draNode) turn(ctx context.Context, s *side) (err error) {
	r, err := n.serve(ctx, s.stack)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop(ctx, r)) }()
	if err := n.measurePod(ctx, &side{stack: s.stack}); err != nil {
		return err
	}
	for range draPods {
		if err := n.measurePod(ctx, s); err != nil {
			return err
		}
	}
	m, err := r.memory()
	s.memory = append(s.memory, m)
	return err
}

// measurePod starts a pod, reads its claim and deletes the pod.
func (n *draNode) measurePod(ctx context.Context, s *side) error {
	before, err := n.preparations(ctx, s.stack)
	if err != nil {
		return err
	}
	took, err := n.runPods(ctx, s.stack, 1)
	if err != nil {
		return err
	}
	s.pods = append(s.pods, took)
	after, err := n.preparations(ctx, s.stack)
	if err != nil {
		return err
	}
	for i, times := range []*[]time.Duration{&s.calls, &s.prepares}[:len(after)] {
		if after[i].count != before[i].count+1 {
			return fmt.Errorf("%d claims were prepared for a pod, want 1", after[i].count-before[i].count)
		}
		*times = append(*times, after[i].sum-before[i].sum)
	}
	if len(after) > 1 {
		if err := n.readClaim(ctx, s); err != nil {
			return err
		}
	}
	return n.deletePods(ctx)
}

// readClaim repeats the GET that the agent sends once to prepare the claim of the stack's pod.
func (n *draNode) readClaim(ctx context.Context, s *side) error {
	claims, err := n.api.list(ctx, claimsPath)
	if err != nil {
		return err
	}
	if len(claims) != 1 {
		return fmt.Errorf("%d claims exist, want that of one pod", len(claims))
	}
	var claim struct{ Metadata struct{ Name string } }
	if err := json.Unmarshal(claims[0], &claim); err != nil {
		return fmt.Errorf("parsing the claim: %w", err)
	}
	for range claimReads {
		if err := sleep(ctx, readPause); err != nil {
			return err
		}
		took, err := timed(func() error {
			_, err := n.server.do(ctx, http.MethodGet, claimsPath+"/"+claim.Metadata.Name, nil)
			return err
		})
		if err != nil {
			return err
		}
		s.reads = append(s.reads, took)
	}
	return nil
}

// Histograms of NodePrepareResources, as the kubelet and the agent measure it.
const (
	kubeletPrepares = "dra_grpc_operations_duration_seconds"
	callLabels      = `{driver_name="` + deviceClass + `",grpc_status_code="OK",method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"}`
	agentPrepares   = "gpucdi_dra_prepare_duration_seconds"
)

// preparations returns the histograms of a stack: none without claims, else that of the kubelet and, of gpucdi, that of
// the agent.
func (n *draNode) preparations(ctx context.Context, s stack) (all []histogram, err error) {
	if !s.claims {
		return nil, nil
	}
	text, err := n.api.do(ctx, http.MethodGet, "/api/v1/nodes/"+nodebox.Name+"/proxy/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("scraping the kubelet: %w", err)
	}
	h, err := parseHistogram(string(text), kubeletPrepares, callLabels)
	if err != nil || !s.agent {
		return []histogram{h}, err
	}
	if text, err = n.agent.do(ctx, http.MethodGet, "/metrics", nil); err != nil {
		return nil, fmt.Errorf("scraping the agent: %w", err)
	}
	own, err := parseHistogram(string(text), agentPrepares, "")
	return []histogram{h, own}, err
}

// histogram is the number of observed durations, and their sum.
type histogram struct {
	count int
	sum   time.Duration
}

// parseHistogram returns the histogram with a name and labels; zeros if it does not exist.
func parseHistogram(metrics, name, labels string) (h histogram, err error) {
	for line := range strings.Lines(metrics) {
		if text, ok := strings.CutPrefix(line, name+"_count"+labels+" "); ok {
			count, failed := strconv.Atoi(strings.TrimSpace(text))
			h.count, err = count, errors.Join(err, failed)
		}
		if text, ok := strings.CutPrefix(line, name+"_sum"+labels+" "); ok {
			seconds, failed := strconv.ParseFloat(strings.TrimSpace(text), 64)
			h.sum, err = time.Duration(seconds*float64(time.Second)), errors.Join(err, failed)
		}
	}
	return h, err
}

// beyond returns how much longer a claim's preparation takes than a GET of the claim.
func beyond(prepares, reads []time.Duration) figure {
	total, read := median(prepares), median(reads)
	return difference([]time.Duration{total - read}, micros).with(", %s in total, GET of the claim %s", micros(total), micros(read))
}
