package event

// Aside is what became of what the command had put where programs outside would run
// or obey it. Paths are absolute. Each list has the first ones, and how many there were
// besides: see BoundAside.
type Aside struct {
	SetAside     []string  `json:"set_aside"` // moved into set-aside.tar of the run's directory
	SetAsideLeft int       `json:"set_aside_left"`
	Renamed      []Renamed `json:"renamed"` // what that could not take
	RenamedLeft  int       `json:"renamed_left"`
	Cleaned      []Cleaned `json:"cleaned"` // configurations of new repositories
	CleanedLeft  int       `json:"cleaned_left"`
	Replaced     []string  `json:"replaced"` // guarded files that somebody outside changed meanwhile
	ReplacedLeft int       `json:"replaced_left"`
}

// Renamed is what was renamed where it lay.
type Renamed struct {
	Path string `json:"path"`
	To   string `json:"to"`
}

// Cleaned is a git configuration from which settings were taken; set-aside.tar has it
// as it was.
type Cleaned struct {
	Path     string   `json:"path"`
	Settings []string `json:"settings"` // the first ones
	Left     int      `json:"settings_left"`
}

// Bounds of the lists of an Aside. The command chooses how many there are, and their
// names: a receipt with all of them might be too large to be read.
const (
	maxAside         = 100
	maxAsideBytes    = 64 << 10 // of the names in one list
	maxSettings      = 20
	maxSettingsBytes = 2 << 10 // of the settings of one configuration
	maxSweptAside    = 10
	maxSweptBytes    = 8 << 10
)

// BoundAside leaves the first of each list, and counts the rest.
func BoundAside(a Aside) Aside {
	a.Cleaned = append([]Cleaned(nil), a.Cleaned...)
	for i := range a.Cleaned {
		c := &a.Cleaned[i]
		c.Settings, c.Left = first(c.Settings, c.Left, maxSettings, maxSettingsBytes, size)
	}
	a.SetAside, a.SetAsideLeft = first(a.SetAside, a.SetAsideLeft, maxAside, maxAsideBytes, size)
	a.Renamed, a.RenamedLeft = first(a.Renamed, a.RenamedLeft, maxAside, maxAsideBytes, func(r Renamed) int { return len(r.Path) + len(r.To) })
	a.Cleaned, a.CleanedLeft = first(a.Cleaned, a.CleanedLeft, maxAside, maxAsideBytes, func(c Cleaned) int {
		n := len(c.Path)
		for _, s := range c.Settings {
			n += len(s)
		}
		return n
	})
	a.Replaced, a.ReplacedLeft = first(a.Replaced, a.ReplacedLeft, maxAside, maxAsideBytes, size)
	return a
}

func size(s string) int { return len(s) }

// first returns the beginning of the list that keeps to both bounds, and how many are
// left out with those that were before.
func first[T any](list []T, left, most, bytes int, size func(T) int) ([]T, int) {
	n := 0
	for n < len(list) && n < most {
		if bytes -= size(list[n]); bytes < 0 {
			break
		}
		n++
	}
	return list[:n:n], left + len(list) - n
}

// AsideCount is how much was set aside in one way or another, or replaced.
func (a Aside) AsideCount() int {
	return len(a.SetAside) + a.SetAsideLeft + len(a.Renamed) + a.RenamedLeft + len(a.Cleaned) + a.CleanedLeft + len(a.Replaced) + a.ReplacedLeft
}

// AsidePaths names the first of all that was set aside in one way or another, and says
// how many there were besides. It is for the receipt of another run, and short: this
// one's own has more.
func (a Aside) AsidePaths() (paths []string, left int) {
	all := append([]string{}, a.SetAside...)
	for _, r := range a.Renamed {
		all = append(all, r.Path)
	}
	for _, c := range a.Cleaned {
		all = append(all, c.Path)
	}
	return first(all, a.SetAsideLeft+a.RenamedLeft+a.CleanedLeft, maxSweptAside, maxSweptBytes, size)
}

// lists returns a whose lists are all present.
func (a Aside) lists() Aside {
	a.SetAside, a.Renamed, a.Replaced = present(a.SetAside), present(a.Renamed), present(a.Replaced)
	a.Cleaned = append([]Cleaned{}, a.Cleaned...)
	for i := range a.Cleaned {
		a.Cleaned[i].Settings = present(a.Cleaned[i].Settings)
	}
	return a
}
