package allocator

import (
	"cmp"
	"slices"
)

// search finds the set of candidates that work together best. It takes the
// best set that grows greedily from any one candidate, and then goes through
// all sets in the resource's order, leaving out those that only exchange one
// device for another of the same links. Servers are so regular that for 8 of
// 16 GPUs a thousand sets remain of 12,870. The step limit bounds what is not
// regular; up to 16 candidates need fewer steps than that whatever their
// links are, so the answer is then the best there is.
//
// Candidates are counted from 0 in the resource's order.
type search struct {
	positions []int // the candidates' places in the resource, ascending
	size      int   // more than the required, less than the candidates
	weight    affinity
	degree    []int64 // a candidate's weight to all others together
	heaviest  int64   // the highest weight of all
	required  []bool  // always a member
	twin      []int   // the last candidate before it that it could stand for, or none

	// The set at hand.
	member []bool
	gain   []int64 // a candidate's weight to the members together
	score  score

	best      []bool
	bestScore score
	steps     int
}

const (
	none     = -1
	maxSteps = 25_000 // choosing 8 of 16 has C(17,8)-1 = 24,309
)

// score orders sets. What stays outside weighs together all weights less cost
// plus inside, so of two sets with the same inside the one of lower cost
// leaves the better remainder.
type score struct {
	inside int64 // the weights between members
	cost   int64 // the members' degrees
}

func (s score) compare(t score) int {
	return cmp.Or(cmp.Compare(s.inside, t.inside), cmp.Compare(t.cost, s.cost))
}

func newSearch(aff affinity, free, must []int, size int) *search {
	n := len(free)
	s := &search{
		positions: free, size: size,
		weight: matrix(n), degree: make([]int64, n), required: make([]bool, n), twin: make([]int, n),
		member: make([]bool, n), gain: make([]int64, n),
		best: make([]bool, n), bestScore: score{inside: -1},
	}
	for i, p := range free {
		_, s.required[i] = slices.BinarySearch(must, p)
		for j, q := range free {
			s.weight[i][j] = aff[p][q]
			s.degree[i] += aff[p][q]
			s.heaviest = max(s.heaviest, aff[p][q])
		}
	}
	for i := range free {
		s.twin[i] = s.twinOf(i)
	}
	return s
}

// twinOf returns the last candidate before i whose weights to all others are
// those of i.
func (s *search) twinOf(i int) int {
	for j := i - 1; j >= 0 && !s.required[i]; j-- {
		if !s.required[j] && s.degree[j] == s.degree[i] && s.alike(i, j) {
			return j
		}
	}
	return none
}

func (s *search) alike(i, j int) bool {
	for x, w := range s.weight[i] {
		if x != i && x != j && w != s.weight[j][x] {
			return false
		}
	}
	return true
}

// run returns the positions of the best set, ascending.
func (s *search) run() []int {
	for seed, required := range s.required {
		if !required {
			s.grow(seed)
		}
	}
	s.extend(0, s.restart())

	set := make([]int, 0, s.size)
	for i, in := range s.best {
		if in {
			set = append(set, s.positions[i])
		}
	}
	return set
}

// restart makes the set at hand the required candidates, and returns how many
// are missing from it.
func (s *search) restart() int {
	clear(s.member)
	clear(s.gain)
	s.score = score{}
	missing := s.size
	for i, required := range s.required {
		if required {
			s.add(i)
			missing--
		}
	}
	return missing
}

// grow completes the set of the required candidates and seed with the best
// candidate, one at a time.
func (s *search) grow(seed int) {
	missing := s.restart()
	for next := seed; missing > 0; missing-- {
		s.add(next)
		next = none
		for i, in := range s.member {
			if !in && (next == none || s.with(i).compare(s.with(next)) > 0) {
				next = i
			}
		}
	}
	s.keep()
}

// extend tries all ways to complete the set at hand with missing candidates
// out of those from first on.
func (s *search) extend(first, missing int) {
	if missing == 0 {
		s.keep()
		return
	}
	if s.limit(first, missing) < s.bestScore.inside {
		return
	}
	for i := first; i <= len(s.member)-missing && s.steps < maxSteps; i++ {
		if s.required[i] || (s.twin[i] != none && !s.member[s.twin[i]]) {
			continue // a set without the twin before it was, or will be, tried with it instead
		}
		if missing == 1 && s.with(i).compare(s.bestScore) < 0 {
			continue
		}
		s.steps++
		s.add(i)
		s.extend(i+1, missing-1)
		s.remove(i)
	}
}

// limit is at least what any completion of the set at hand can weigh: each of
// the missing adds at most the highest gain, and each pair of them the highest
// weight.
func (s *search) limit(first, missing int) int64 {
	var gain int64
	for i := first; i < len(s.gain); i++ {
		if !s.required[i] {
			gain = max(gain, s.gain[i])
		}
	}
	n := int64(missing)
	return s.score.inside + n*gain + n*(n-1)/2*s.heaviest
}

// keep makes the set at hand the best one if it is, or if it is as good and
// stands earlier.
func (s *search) keep() {
	better := s.score.compare(s.bestScore)
	if better == 0 {
		better = s.earlier()
	}
	if better > 0 {
		copy(s.best, s.member)
		s.bestScore = s.score
	}
}

// earlier compares the set at hand with the best by where they first differ.
func (s *search) earlier() int {
	for i, in := range s.member {
		if in != s.best[i] {
			if in {
				return 1
			}
			return -1
		}
	}
	return 0
}

// with is the score that the set at hand has with i in addition.
func (s *search) with(i int) score {
	return score{s.score.inside + s.gain[i], s.score.cost + s.degree[i]}
}

func (s *search) add(i int) {
	s.score = s.with(i)
	s.member[i] = true
	for j, w := range s.weight[i] {
		s.gain[j] += w
	}
}

func (s *search) remove(i int) {
	s.member[i] = false
	for j, w := range s.weight[i] {
		s.gain[j] -= w
	}
	s.score = score{s.score.inside - s.gain[i], s.score.cost - s.degree[i]}
}
