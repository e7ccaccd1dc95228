package allocator

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func mig(uuid string, instance, compute, start, size int) Part {
	return Part{GPU: uuid, Extent: ExtentMIG, GPUInstance: instance, ComputeInstance: compute, Placement: gpu.Placement{Start: start, Size: size}}
}

func shareOf(p Part, class Class, count int) Part {
	p.Share = Share{Class: class, Count: count}
	return p
}

func TestOverlaps(t *testing.T) {
	whole, other := Part{GPU: "GPU-0", Extent: ExtentWhole}, Part{GPU: "GPU-1", Extent: ExtentWhole}
	small := mig("GPU-0", 1, 0, 0, 4)
	for _, tc := range []struct {
		name              string
		p, q              Part
		overlaps, touches bool
	}{
		{"the same GPU", whole, whole, true, true},
		{"another GPU", whole, other, false, false},
		{"a MIG device and its GPU", small, whole, true, true},
		{"a MIG device and another GPU", small, other, false, false},
		{"MIG devices on other slices", small, mig("GPU-0", 2, 0, 4, 4), false, false},
		{"on other slices with equal instance IDs", small, mig("GPU-0", 1, 0, 4, 4), true, true},
		{"on the same slices with other instance IDs", small, mig("GPU-0", 2, 0, 3, 1), true, true},
		{"compute instances of one GPU instance", small, mig("GPU-0", 1, 1, 0, 4), false, false},
		{"unknown placements", mig("GPU-0", 1, 0, 0, 0), mig("GPU-0", 2, 0, 0, 0), false, false},
		{"equal instance IDs, unknown placements", mig("GPU-0", 1, 0, 0, 0), mig("GPU-0", 1, 0, 0, 0), true, true},
		{"unknown", Part{}, whole, true, true},
		{"unknown twice", Part{}, Part{}, true, true},
		{"unknown on another GPU", Part{GPU: "GPU-1"}, whole, false, false},
		{"shares of one class", shareOf(whole, TimeSliced, 2), shareOf(whole, TimeSliced, 3), false, true},
		{"shares of two classes", shareOf(whole, TimeSliced, 2), shareOf(whole, "mps", 2), true, true},
		{"a share and its GPU", shareOf(whole, TimeSliced, 2), whole, true, true},
		{"shares of a GPU and of a MIG device", shareOf(whole, TimeSliced, 2), shareOf(small, TimeSliced, 2), true, true},
		{"shares of a MIG device before and after repartitioning", shareOf(small, TimeSliced, 2), shareOf(mig("GPU-0", 1, 0, 0, 8), TimeSliced, 2), true, true},
		{"unknown shares", shareOf(Part{}, TimeSliced, 2), shareOf(Part{}, TimeSliced, 2), true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.p.overlaps(tc.q); got != tc.overlaps {
				t.Errorf("overlaps = %v, want %v", got, tc.overlaps)
			}
			if tc.p.overlaps(tc.q) != tc.q.overlaps(tc.p) || tc.p.touches(tc.q) != tc.q.touches(tc.p) {
				t.Error("the result depends on the order")
			}
			if got := tc.p.touches(tc.q); got != tc.touches {
				t.Errorf("touches = %v, want %v", got, tc.touches)
			}
			var used usage
			used.add(tc.q)
			if fits := used.fits(tc.p); fits == tc.overlaps {
				t.Errorf("fits = %v", fits)
			}
			if used.remove(tc.q); !used.fits(tc.p) {
				t.Error("the part does not fit on an empty GPU")
			}
		})
	}
}

// Shares of any size fit exactly until they add up to their device.
func TestSharesAddUp(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(1, seed))
		var used usage
		sum, one := new(big.Rat), big.NewRat(1, 1)
		size := []int{1 + r.IntN(20_000), 1 + r.IntN(50), 1 + r.IntN(5)}
		for range 200 {
			p := shareOf(Part{GPU: "GPU-0", Extent: ExtentWhole}, TimeSliced, size[r.IntN(len(size))])
			more := new(big.Rat).Add(sum, big.NewRat(1, int64(p.Share.Count)))
			if fits := used.fits(p); fits != (more.Cmp(one) <= 0) {
				t.Fatalf("seed %d: fits = %v at %v", seed, fits, more)
			} else if fits {
				used.add(p)
				sum = more
			}
		}
	}
}
