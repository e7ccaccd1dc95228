package allocator

import (
	"cmp"
	"slices"
)

// search finds the set of candidates with the highest affinity. It starts with the best set of a greedy search from
// each candidate, and then enumerates all sets in the order of the resource, except those that differ only in
// candidates with equal links. Most servers are so regular that for 8 of 16 GPUs a thousand of 12,870 sets remain. For
// irregular servers, maxSteps bounds the enumeration; up to 16 candidates never reach it, so their result is optimal.
//
// Candidates are numbered from 0 in the order of the resource.
type search struct {
	positions  []int // of the candidates in the resource, ascending
	size       int   // of the set; more than the required candidates, fewer than all
	weight     affinity
	degree     []int64 // sum of a candidate's weights to all others
	heaviest   int64   // maximum weight
	required   []bool  // always a member
	equivalent []int   // last earlier candidate with equal weights, or none

	// The current set.
	member []bool
	gain   []int64 // sum of a candidate's weights to the members
	score  score

	best      []bool
	bestScore score
	steps     int
}

const (
	none     = -1
	maxSteps = 25_000 // 8 of 16 take C(17,8)-1 = 24,309
)

// score orders sets. The remaining candidates weigh total - cost + inside, so of two sets with equal inside the one
// with the lower cost leaves the better remainder.
type score struct {
	inside int64 // sum of the weights between members
	cost   int64 // sum of the degrees of members
}

func (s score) compare(t score) int {
	return cmp.Or(cmp.Compare(s.inside, t.inside), cmp.Compare(t.cost, s.cost))
}

func newSearch(aff affinity, free, must []int, size int) *search {
	n := len(free)
	s := &search{
		positions: free, size: size,
		weight: matrix(n), degree: make([]int64, n), required: make([]bool, n), equivalent: make([]int, n),
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
		s.equivalent[i] = s.equivalentOf(i)
	}
	return s
}

// equivalentOf returns the last candidate before i with the same weights to all others.
func (s *search) equivalentOf(i int) int {
	for j := i - 1; j >= 0 && !s.required[i]; j-- {
		if !s.required[j] && s.degree[j] == s.degree[i] && s.sameWeights(i, j) {
			return j
		}
	}
	return none
}

func (s *search) sameWeights(i, j int) bool {
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
	s.extend(0, s.reset())

	set := make([]int, 0, s.size)
	for i, in := range s.best {
		if in {
			set = append(set, s.positions[i])
		}
	}
	return set
}

// reset sets the current set to the required candidates, and returns how many are missing.
func (s *search) reset() int {
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

// grow completes the set of the required candidates and seed greedily.
func (s *search) grow(seed int) {
	missing := s.reset()
	for next := seed; missing > 0; missing-- {
		s.add(next)
		next = none
		for i, in := range s.member {
			if !in && (next == none || s.scoreWith(i).compare(s.scoreWith(next)) > 0) {
				next = i
			}
		}
	}
	s.updateBest()
}

// extend tries all completions of the current set with candidates from number first on; missing is how many to add.
func (s *search) extend(first, missing int) {
	if missing == 0 {
		s.updateBest()
		return
	}
	if s.upperBound(first, missing) < s.bestScore.inside {
		return
	}
	for i := first; i <= len(s.member)-missing && s.steps < maxSteps; i++ {
		if s.required[i] || (s.equivalent[i] != none && !s.member[s.equivalent[i]]) {
			continue // the set with the equivalent candidate in its place has an equal score
		}
		if missing == 1 && s.scoreWith(i).compare(s.bestScore) < 0 {
			continue
		}
		s.steps++
		s.add(i)
		s.extend(i+1, missing-1)
		s.remove(i)
	}
}

// upperBound bounds the weight of any completion of the current set: each missing candidate adds at most the highest
// gain, and each pair of them the highest weight.
func (s *search) upperBound(first, missing int) int64 {
	var gain int64
	for i := first; i < len(s.gain); i++ {
		if !s.required[i] {
			gain = max(gain, s.gain[i])
		}
	}
	n := int64(missing)
	return s.score.inside + n*gain + n*(n-1)/2*s.heaviest
}

// updateBest makes the current set the best one if its score is higher, or equal and it is first in order.
func (s *search) updateBest() {
	better := s.score.compare(s.bestScore)
	if better == 0 {
		better = s.compareOrder()
	}
	if better > 0 {
		copy(s.best, s.member)
		s.bestScore = s.score
	}
}

// compareOrder compares the current set with the best one by the first candidate in which they differ.
func (s *search) compareOrder() int {
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

// scoreWith returns the score of the current set with i added.
func (s *search) scoreWith(i int) score {
	return score{s.score.inside + s.gain[i], s.score.cost + s.degree[i]}
}

func (s *search) add(i int) {
	s.score = s.scoreWith(i)
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
