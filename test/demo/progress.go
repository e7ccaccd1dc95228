package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress prints a line for each stage: its name when it starts, its time when it has ended.
// On a terminal the time is counted while the stage runs.
type progress struct {
	out     *os.File
	live    bool
	started time.Time
	// stop ends the counting of the stage that runs; nil when none does.
	stop func()
}

func newProgress(out *os.File) *progress {
	return &progress{out: out, live: term.IsTerminal(int(out.Fd())), started: time.Now()}
}

func (p *progress) say(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

// stage starts a line; what it returns completes it.
func (p *progress) stage(name string) (done func()) {
	start := time.Now()
	fmt.Fprintf(p.out, "  %-18s", name)
	p.stop = func() {}
	if p.live {
		p.stop = tick(func() { fmt.Fprintf(p.out, "\r  %-18s%8s", name, seconds(start)) })
	}
	return func() {
		p.stop()
		p.stop = nil
		if p.live {
			fmt.Fprintf(p.out, "\r  %-18s", name)
		}
		fmt.Fprintf(p.out, "%8s\n", seconds(start))
	}
}

// abandon ends the line of a stage that has failed.
func (p *progress) abandon() {
	if p.stop != nil {
		p.stop()
		fmt.Fprintln(p.out)
	}
}

// tick calls show every second until it is stopped.
func tick(show func()) (stop func()) {
	end := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				show()
			case <-end:
				return
			}
		}
	})
	return func() {
		close(end)
		ticking.Wait()
	}
}

func (p *progress) total() { p.say("  %-18s%8s", "together", seconds(p.started)) }

func seconds(since time.Time) string {
	return fmt.Sprintf("%.1f s", time.Since(since).Seconds())
}
