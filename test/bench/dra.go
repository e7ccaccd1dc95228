package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// publications is the number of starts of the agent with DRA, and of deletions of its ResourceSlices.
	publications = 20
	// draRounds is the number of turns with DRA and of turns without. Each turn measures draPods pods, one at a time.
	draRounds, draPods = 5, 4
	// claimReads is the number of GETs of each claim in succession. Such a GET takes less time than a single one, so
	// NodePrepareResources minus the GET is an upper bound on the agent's own time.
	claimReads = 10
)

// dra measures the DRA driver, pods with claims and pods of the device plugin in turn, and parts of GPUs.
func (b *bench) dra(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the watch
	defer cancel()
	n, err := b.startDRANode(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := b.publish(ctx, n); err != nil {
		return err
	}
	if err := b.claims(ctx, n); err != nil {
		return err
	}
	if err := b.forced(ctx, n); err != nil {
		return err
	}
	return b.parts(ctx, n)
}

// publish measures how soon the ResourceSlices have all GPUs: after the start of the agent, and after their deletion.
func (b *bench) publish(ctx context.Context, n *draNode) error {
	var starts, version, restored []time.Duration
	for range publications {
		took, err := timed(n.Box.Command(ctx, gpucdiDir+"/gpucdi", "version").Run)
		if err != nil {
			return fmt.Errorf("running gpucdi version: %w", err)
		}
		version = append(version, took)
		r, took, err := n.startPublishing(ctx)
		if err != nil {
			return err
		}
		starts = append(starts, took)
		if took, err = n.restore(ctx); err != nil {
			return errors.Join(err, n.stop(ctx, r))
		}
		restored = append(restored, took)
		if err := n.stop(ctx, r); err != nil {
			return err
		}
	}
	b.draTable.add(fmt.Sprintf("start to %d GPUs in ResourceSlices", gpuCount),
		typical(starts).with(", gpucdi version: %s", typical(version).text), figure{}, atMost("150 ms", 150*time.Millisecond))
	b.draTable.add("ResourceSlices deleted to published again", typical(restored), figure{}, atMost("1 s", time.Second))
	return nil
}

// restore deletes the slices and returns the time until they have all GPUs again.
func (n *draNode) restore(ctx context.Context) (time.Duration, error) {
	if err := sleep(ctx, podPause); err != nil {
		return 0, err
	}
	return timed(func() error {
		if err := n.deleteSlices(ctx); err != nil {
			return err
		}
		return n.slices.await(ctx, gpuCount)
	})
}

// A side is a stack with its measurements.
type side struct {
	stack           stack
	pods            []time.Duration // from the creation of a pod to the start of its container
	prepares, reads []time.Duration // of claims: NodePrepareResources, and GETs
	memory          []memory        // after each turn
}

// claims measures pods and their claims, with and without DRA in turn.
func (b *bench) claims(ctx context.Context, n *draNode) error {
	sides := []*side{{stack: withDRA()}, {stack: withoutDRA()}}
	if err := n.turns(ctx, sides); err != nil {
		return err
	}
	claims, plain := sides[0], sides[1]
	used := medianMemory(plain.memory)
	b.draTable.add("NodePrepareResources, 1 GPU", beyond(claims.prepares, claims.reads), figure{}, atMost("+1 ms", time.Millisecond))
	b.draTable.add("pod with a claim for 1 GPU", typical(claims.pods), typical(plain.pods), none)
	// The other side has no value, since the ratio of an increase to a total is meaningless.
	b.draTable.add(fmt.Sprintf("resident after %d claims", draPods+1), medianMemory(claims.memory).beyond(used), figure{text: used.figure().text},
		target{text: "+5 MB", value: 5})
	program, err := os.Stat(b.gpucdi)
	if err != nil {
		return err
	}
	size := float64(program.Size()) / 1e6
	b.draTable.add("size of the program", figure{fmt.Sprintf("%.1f MB", size), size}, figure{}, target{text: "25 MB", value: 25})
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
	before, err := n.prepares(ctx)
	if err != nil {
		return err
	}
	took, err := n.runPods(ctx, s.stack, 1)
	if err != nil {
		return err
	}
	s.pods = append(s.pods, took)
	after, err := n.prepares(ctx)
	if err != nil {
		return err
	}
	if s.stack.claims {
		if after.count != before.count+1 {
			return fmt.Errorf("%d claims were prepared for a pod, want 1", after.count-before.count)
		}
		s.prepares = append(s.prepares, after.total-before.total)
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

// prepares is the number of claims that the agent has prepared, and the time that it took.
type prepares struct {
	count int
	total time.Duration
}

func (n *draNode) prepares(ctx context.Context) (prepares, error) {
	metrics, err := n.agent.do(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return prepares{}, fmt.Errorf("scraping the agent: %w", err)
	}
	return parsePrepares(string(metrics))
}

// parsePrepares returns zeros for an agent without DRA.
func parsePrepares(metrics string) (p prepares, err error) {
	const histogram = "gpucdi_dra_prepare_duration_seconds"
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		var failed error
		switch name {
		case histogram + "_count":
			p.count, failed = strconv.Atoi(value)
		case histogram + "_sum":
			var seconds float64
			seconds, failed = strconv.ParseFloat(value, 64)
			p.total = time.Duration(seconds * float64(time.Second))
		}
		err = errors.Join(err, failed)
	}
	return p, err
}

// beyond returns how much longer a claim's preparation takes than a GET of the claim.
func beyond(prepares, reads []time.Duration) figure {
	total, read := median(prepares), median(reads)
	return difference([]time.Duration{total - read}, micros).with(", %s in total, GET of the claim %s", micros(total), micros(read))
}
