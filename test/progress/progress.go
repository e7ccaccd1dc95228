// Package progress prints the stages of a long command and their duration.
package progress

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress prints a line for each stage: the name when it starts, the duration when it ends. On a terminal the duration
// is updated while the stage runs. Its methods must not be called concurrently.
type Progress struct {
	out     *os.File
	width   int
	live    bool
	started time.Time
	stop    func() // stops updating the duration of the current stage; nil: no stage
}

// New returns a Progress that prints to out. width is the number of columns for names of stages.
func New(out *os.File, width int) *Progress {
	return &Progress{out: out, width: width, live: term.IsTerminal(int(out.Fd())), started: time.Now()}
}

// Printf prints a line.
func (p *Progress) Printf(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

// Stage starts a stage. done ends it.
func (p *Progress) Stage(name string) (done func()) {
	start := time.Now()
	fmt.Fprintf(p.out, "  %-*s", p.width, name)
	p.stop = func() {}
	if p.live {
		p.stop = tick(func() { fmt.Fprintf(p.out, "\r  %-*s%8s", p.width, name, seconds(start)) })
	}
	return func() {
		p.stop()
		p.stop = nil
		if p.live {
			fmt.Fprintf(p.out, "\r  %-*s", p.width, name)
		}
		fmt.Fprintf(p.out, "%8s\n", seconds(start))
	}
}

// Fail ends the line of the current stage, if any, without printing its duration.
func (p *Progress) Fail() {
	if p.stop != nil {
		p.stop()
		p.stop = nil
		fmt.Fprintln(p.out)
	}
}

// tick calls show every second until stop is called.
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

// Total prints the duration since New.
func (p *Progress) Total() { p.Printf("  %-*s%8s", p.width, "total", seconds(p.started)) }

func seconds(since time.Time) string {
	return fmt.Sprintf("%.1f s", time.Since(since).Seconds())
}
