package event

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// However many there are and whatever they are called, a receipt can be read.
func TestWhatACommandMadeDoesNotFillAReceipt(t *testing.T) {
	const many = 9000
	long := "/p/" + strings.Repeat("\x01", 4000)
	var a Aside
	for range many {
		a.SetAside, a.Replaced = append(a.SetAside, long), append(a.Replaced, long)
		a.Renamed = append(a.Renamed, Renamed{Path: long, To: long})
		a.Cleaned = append(a.Cleaned, Cleaned{Path: long, Settings: []string{"a.b", strings.Repeat("s", 1<<20), "c.d"}})
	}
	b := BoundAside(a)
	text, err := json.Marshal(Receipt{Aside: b})
	if err != nil || len(text) > 2<<20 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	for name, n := range map[string]int{
		"set aside": len(b.SetAside) + b.SetAsideLeft, "renamed": len(b.Renamed) + b.RenamedLeft,
		"cleaned": len(b.Cleaned) + b.CleanedLeft, "replaced": len(b.Replaced) + b.ReplacedLeft,
	} {
		if n != many {
			t.Errorf("%s: %d of %d", name, n, many)
		}
	}
	if len(b.SetAside) == 0 || len(b.Cleaned) == 0 || len(b.Cleaned[0].Settings) != 1 || b.Cleaned[0].Left != 2 {
		t.Errorf("%d set aside, %d cleaned: %d", len(b.SetAside), len(b.Cleaned), b.Cleaned[0].Left)
	}
	if b.AsideCount() != 4*many || a.AsideCount() != 4*many {
		t.Errorf("%d in all, %d before", b.AsideCount(), a.AsideCount())
	}
	if len(a.Cleaned[0].Settings) != 3 {
		t.Error("the caller's own was changed")
	}
}

func TestShortNamesAreBoundedByTheirNumber(t *testing.T) {
	var a Aside
	for i := range 250 {
		a.SetAside = append(a.SetAside, fmt.Sprint(i))
	}
	b := BoundAside(BoundAside(a))
	if len(b.SetAside) != 100 || b.SetAsideLeft != 150 || b.SetAside[99] != "99" {
		t.Errorf("%d and %d more", len(b.SetAside), b.SetAsideLeft)
	}
	if paths, left := b.AsidePaths(); len(paths) != 10 || left != 240 {
		t.Errorf("for another receipt %d and %d more", len(paths), left)
	}
	if paths, left := BoundAside(Aside{Renamed: []Renamed{{"x", "y"}}}).AsidePaths(); len(paths) != 1 || left != 0 {
		t.Errorf("%q and %d more", paths, left)
	}
}
