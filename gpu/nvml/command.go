package nvml

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu/driver"
)

// output sends messages to gpucdi. It is safe for concurrent use.
type output struct {
	mu sync.Mutex
	to *json.Encoder
}

func (o *output) send(m driver.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to.Encode(m)
}

// target is a GPU that commands can be about.
type target struct {
	index int
	dev   nvml.Device
}

// setCurrent sets the GPUs that commands can be about: those of the latest inventory, which has no quarantined ones. The
// first call starts the execution of commands.
func (w *worker) setCurrent() {
	current := map[string]target{}
	for _, g := range w.latest.GPUs {
		current[g.UUID] = target{g.Index, w.devices[g.UUID]}
	}
	if w.current.Swap(&current) == nil {
		go w.execute()
	}
}

// readCommands returns the commands from gpucdi. It ends this process after an invalid command, or when the pipe is
// closed because gpucdi has exited: a hung call into the driver must not keep the worker alive.
func readCommands(from io.Reader) <-chan driver.Command {
	commands := make(chan driver.Command, driver.MaxCommands) // so that EOF is read even if a command hangs
	go func() {
		lines := bufio.NewScanner(from)
		lines.Buffer(make([]byte, driver.CommandLimit), driver.CommandLimit)
		message := "agent exited"
		for lines.Scan() {
			var c driver.Command
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				message = "invalid command: " + err.Error()
				break
			}
			commands <- c
		}
		if err := lines.Err(); err != nil {
			message += ": " + err.Error()
		}
		fmt.Fprintln(os.Stderr, message)
		os.Exit(1)
	}()
	return commands
}

// execute executes commands, one after the other. It does not wait for the probe cycle, which can take as long as
// Config.Interval.
func (w *worker) execute() {
	for c := range w.commands {
		reply := driver.Reply{Failed: "the GPU is not in the inventory, or does not respond"}
		if t, found := (*w.current.Load())[c.GPU]; found {
			err := w.step(driver.Step{Index: t.index, Kind: driver.Setting}, func() { reply = w.setting(t.dev, c) })
			if err != nil {
				reply = driver.Reply{Failed: err.Error()}
			}
		}
		reply.ID = c.ID
		_ = w.out.send(driver.Message{Reply: &reply}) // fails only if gpucdi has exited
	}
}
