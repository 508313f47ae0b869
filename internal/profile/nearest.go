package profile

import "slices"

// Nearest returns the known name that is most like name, "" when none is at all:
// names that differ in more than a third of their letters are not alike.
func Nearest(name string, known []string) string {
	best, bestDistance := "", len(name)/3+2
	sorted := slices.Sorted(slices.Values(known))
	for _, candidate := range sorted {
		if d := distance(name, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance counts insertions, deletions and substitutions (Levenshtein).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
