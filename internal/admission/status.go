package admission

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/store"
)

// Status is how the pools stand.
type Status struct {
	Pools   []Pool   `json:"pools"`
	Holders []Holder `json:"runs"` // in the order of asking
}

// Pool is one class.
type Pool struct {
	Class     class.Name `json:"class"`
	Cap       int        `json:"cap"`
	Busy      int        `json:"busy"`
	Queued    int        `json:"queued"`
	Consumers []Consumer `json:"consumers"` // sorted by name
}

// Consumer is what one consumer has of a pool.
type Consumer struct {
	Name   string `json:"name"`
	Busy   int    `json:"busy"`
	Queued int    `json:"queued"`
}

// Holder is a run that holds a slot or waits for one.
type Holder struct {
	Run      string     `json:"run"`
	Class    class.Name `json:"class"`
	Consumer string     `json:"consumer"`
	Sandbox  string     `json:"sandbox,omitempty"`
	Waiting  bool       `json:"waiting"`
	Ahead    int        `json:"ahead"` // while it waits
	Since    time.Time  `json:"since"` // of the slot, or of the wait
	BeatAt   time.Time  `json:"beat_at"`
}

// Look reads how the pools stand, without those whose process is gone. Where there is
// no store, nobody holds anything.
func Look(ctx context.Context, stateDir string, caps map[class.Name]int) (Status, error) {
	s, err := store.Open(ctx, store.Options{Dir: stateDir, Existing: true})
	if errors.Is(err, store.ErrMissing) {
		return summarise(nil, caps), nil
	}
	if err != nil {
		return Status{}, err
	}
	defer s.Close()
	var living []store.Ticket
	err = s.View(ctx, func(t *store.Tx) (err error) {
		living, err = t.Living()
		return err
	})
	if err != nil {
		return Status{}, err
	}
	return summarise(living, caps), nil
}

func summarise(tickets []store.Ticket, caps map[class.Name]int) Status {
	status := Status{Holders: []Holder{}}
	pools := map[class.Name]*Pool{}
	for name, limit := range caps {
		pools[name] = &Pool{Class: name, Cap: limit, Consumers: []Consumer{}}
	}
	for _, t := range tickets {
		p := pools[class.Name(t.Class)]
		if p == nil { // a class of another version of sbx
			p = &Pool{Class: class.Name(t.Class)}
			pools[p.Class] = p
		}
		h := Holder{
			Run: t.Run, Class: p.Class, Consumer: t.Consumer, Sandbox: t.Sandbox, Waiting: t.Waiting, Since: t.AdmittedAt, BeatAt: t.BeatAt,
		}
		if t.Waiting {
			h.Ahead, h.Since = p.Queued, t.AskedAt
		}
		p.count(t)
		status.Holders = append(status.Holders, h)
	}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		slices.SortFunc(pools[name].Consumers, func(a, b Consumer) int { return cmp.Compare(a.Name, b.Name) })
		status.Pools = append(status.Pools, *pools[name])
	}
	return status
}

func (p *Pool) count(t store.Ticket) {
	i := slices.IndexFunc(p.Consumers, func(c Consumer) bool { return c.Name == t.Consumer })
	if i < 0 {
		i, p.Consumers = len(p.Consumers), append(p.Consumers, Consumer{Name: t.Consumer})
	}
	if t.Waiting {
		p.Queued++
		p.Consumers[i].Queued++
	} else {
		p.Busy++
		p.Consumers[i].Busy++
	}
}
