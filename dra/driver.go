package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/sockets"
)

// Config configures a Driver.
type Config struct {
	Driver  string // "gpu.nvidia.com"
	Pool    string // of this node's devices: the name of the node
	CDIKind string // "gpucdi.dev/gpu"

	ClaimCDIKind string // of the CDI devices for a single claim, which are named by its UID: "gpucdi.dev/claim"

	// Injectable returns the reason why the CDI spec lacks a device; nil if the spec contains it. The error wraps
	// allocator.ErrHeld if the device is about to be written. Injectable must not block. May be nil if the spec contains
	// all devices.
	Injectable func(id string) error

	// KubeletDevices returns the names of the devices that the kubelet has received for a claim in earlier calls. It adds
	// those of a later call to them, and forgets them when the claim is unprepared. May be nil if claims are not allocated
	// again.
	KubeletDevices func(uid string) ([]string, error)

	// Variants returns the selected features that the CDI device of a device lacks. For each of them, the claim gets a
	// variant: a CDI device that adds the feature. The error is the reason why a variant is not available; it wraps
	// allocator.ErrHeld if the variant is about to be written. Variants must not block.
	Variants func(id string, selected allocator.Features) (allocator.Features, error)

	// ExtraDevices returns the CDI devices that each device of a claim gets in addition to its own; may be nil. It must
	// not block.
	ExtraDevices func() []string

	// KubeletDir is the kubelet's root directory as seen by this process, and KubeletPath as seen by the kubelet. The
	// directory may be missing or replaced at any time.
	KubeletDir  string
	KubeletPath string // empty if they are the same

	StateDir string // contains the directory of the claim records; empty keeps them only in memory

	Claims ClaimReader
	Gate   Gate

	// Pods returns the pods that hold a device, or another device on the same hardware, through the device plugin, as
	// "namespace/name", for the message of a claim that they delay. It returns within a second. May be nil.
	Pods func(ctx context.Context, id string) []string

	Wait time.Duration // how long a claim waits for devices of other holders; 30 s if zero

	// SetTimeSlice sets the time slice of the GPU with a UUID; it returns early if ctx ends. The error wraps
	// errors.ErrUnsupported if the GPU supports only the default, and host.ErrNotExited while an earlier call that returned
	// early may still take effect. May be nil if no GPU supports others than the default.
	SetTimeSlice func(ctx context.Context, uuid string, t gpu.TimeSlice) error

	// LimitMemory limits the memory of a pod on each GPU to that of its prepared claims, and verifies the limits; it
	// returns early if ctx ends. It is not called concurrently for one pod. May be nil if no claim is for a part of a GPU.
	LimitMemory func(ctx context.Context, podUID string) error

	// MPSPercentage returns the maximum compute time that MPS has to enforce for a claim with an amount of a device, in
	// percent of the GPU; 0 if the device is not shared through MPS. ceiling is the maximum in the claim's configuration;
	// 0: none. It must not block. May be nil if no device is shared through MPS.
	MPSPercentage func(id string, amount allocator.Amount, ceiling int) int

	// CheckPods returns an error if one of the pods of a claim with an MPSPercentage could remove the limit. It returns
	// early if ctx ends. May be nil if MPSPercentage is nil.
	CheckPods func(ctx context.Context, namespace string, pods []Pod) error

	// LimitCompute prepares the GPUs of a claim for its containers: those with an MPSPercentage for clients of MPS with
	// that maximum, and others for use without MPS. The containers of a claim with an MPSPercentage get the CDI device of
	// the claim in addition. ReleaseCompute undoes it. Both can be repeated, and return early if ctx ends. They may be
	// nil if MPSPercentage is nil.
	LimitCompute   func(ctx context.Context, r Record) error
	ReleaseCompute func(ctx context.Context, r Record) error

	Observer Observer // may be nil
	Changed  func()   // called after the records or Registration.Conflict changed; may be nil, must not block
}

// Gate grants devices to claims. *allocator.Gate implements it. Its methods must not block.
type Gate interface {
	Prepare(claim allocator.Claim) error // see allocator.Gate for the errors
	Restore(claim allocator.Claim)
	Unprepare(uid string)
	Cancel(uid string)
	Claim(uid string) (c allocator.Claim, prepared bool)
	Claims() []allocator.Claim
	Changed() <-chan struct{}
}

var _ Gate = (*allocator.Gate)(nil)

// defaultWait is as long as possible, since the kubelet repeats a failed call only after 60 to 90 s. It leaves time
// within callTimeout to change the settings of GPUs.
const defaultWait = callTimeout - settingTimeout

// Driver is the kubelet plugin of a DRA driver. Its methods are safe for concurrent use; Run must be called once.
type Driver struct {
	cfg     Config
	log     *slog.Logger
	locks   uidLocks
	records *store

	update sync.Mutex // serializes writes to health
	health atomic.Pointer[healthList]

	registration registrationState

	// registerTimeout bounds the time that the kubelet needs to register a new socket.
	registerTimeout time.Duration
	// conflictInterval is the interval between checks for another process that serves this driver. They are periodic,
	// because a killed process leaves its socket behind, so no file event reports its end.
	conflictInterval time.Duration
}

// recordsDir is the directory of the claim records in the state directory.
const recordsDir = "claims"

// New returns a Driver that does not serve until Run is called. It restores the records of an earlier agent, and their
// grants in the gate, so it must be called before the gate grants anything.
func New(cfg Config, log *slog.Logger) *Driver {
	cfg = cfg.withDefaults()
	dir := ""
	if cfg.StateDir != "" {
		dir = filepath.Join(cfg.StateDir, recordsDir)
	}
	d := &Driver{cfg: cfg, log: log.With("driver", cfg.Driver), registerTimeout: time.Minute, conflictInterval: 10 * time.Second}
	d.health.Store(&healthList{superseded: make(chan struct{})})
	d.registration.problem = "not attempted yet"
	var err error
	if d.records, err = load(dir); err != nil {
		d.log.Warn("claim records not read, tracking prepared claims through their containers only", "dir", dir, "err", err)
	}
	for _, r := range d.Records() {
		if r.Damaged != "" {
			d.log.Warn("claim record damaged, tracking its devices through their containers only", "uid", r.UID, "err", r.Damaged)
			continue
		}
		cfg.Gate.Restore(r.grant())
	}
	return d
}

// withDefaults returns the Config with a value for each optional field.
func (cfg Config) withDefaults() Config {
	cfg.KubeletDir = filepath.Clean(cfg.KubeletDir) // fsnotify reports clean paths
	if cfg.KubeletPath == "" {
		cfg.KubeletPath = cfg.KubeletDir
	}
	if cfg.Wait == 0 {
		cfg.Wait = defaultWait
	}
	if cfg.Injectable == nil {
		cfg.Injectable = func(string) error { return nil }
	}
	if cfg.KubeletDevices == nil {
		cfg.KubeletDevices = func(string) ([]string, error) { return nil, nil }
	}
	if cfg.SetTimeSlice == nil {
		cfg.SetTimeSlice = func(context.Context, string, gpu.TimeSlice) error { return errors.ErrUnsupported }
	}
	if cfg.LimitMemory == nil {
		cfg.LimitMemory = func(context.Context, string) error { return errors.ErrUnsupported }
	}
	if cfg.MPSPercentage == nil {
		cfg.MPSPercentage = func(string, allocator.Amount, int) int { return 0 }
		cfg.CheckPods = func(context.Context, string, []Pod) error {
			return fmt.Errorf("%w: %w", errComputeLimit, errors.ErrUnsupported)
		}
		cfg.LimitCompute = func(context.Context, Record) error { return nil }
		cfg.ReleaseCompute = func(context.Context, Record) error { return nil }
	}
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	if cfg.Variants == nil {
		cfg.Variants = func(string, allocator.Features) (allocator.Features, error) { return "", errors.ErrUnsupported }
	}
	if cfg.ExtraDevices == nil {
		cfg.ExtraDevices = func() []string { return nil }
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	if cfg.Pods == nil {
		cfg.Pods = func(context.Context, string) []string { return nil }
	}
	return cfg
}

// Records returns the prepared claims, sorted by UID. The slice must not be modified.
func (d *Driver) Records() []Record { return d.records.snapshot() }

// IfPrepared calls do with the record of a prepared claim. It does not call do if a call for the claim is in progress;
// calls that begin later wait until do returns.
func (d *Driver) IfPrepared(uid string, do func(Record) error) error {
	if !d.locks.tryLock(uid) {
		return nil
	}
	defer d.locks.unlock(uid)
	record, recorded := d.records.get(uid)
	if !recorded {
		return nil
	}
	return do(record)
}

// Run serves the driver and keeps it registered with the kubelet until ctx ends. It must be called after the gate
// has its first ledger: a claim whose device is not in the ledger is refused. Run returns an error only if the Config
// is unusable.
func (d *Driver) Run(ctx context.Context) error {
	registry, service := d.socketPaths()
	seen := filepath.Join(d.cfg.KubeletPath, pluginsDir, d.cfg.Driver, filepath.Base(service))
	for _, path := range []string{registry, service, seen} {
		if len(path) > sockets.MaxPath {
			return fmt.Errorf("serving DRA driver %s: socket path %s has %d bytes, more than the maximum of %d; use a shorter driver name or --kubelet-dir",
				d.cfg.Driver, path, len(path), sockets.MaxPath)
		}
	}
	changed := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	for _, w := range []sockets.Watcher{
		{Dir: d.registryDir(), Relevant: d.isRelevant},
		{Dir: d.pluginDir(), Relevant: isServiceSocket},
	} {
		w.Changed, w.Log = changed, d.log
		g.Go(func() error { w.Run(ctx); return nil })
	}
	g.Go(func() error { d.keepRegistered(ctx, changed); return nil })
	return g.Wait()
}
