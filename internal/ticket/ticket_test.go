package ticket

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"testing"
	"time"
)

func key(k string) MAC {
	return func(purpose string, parts ...[]byte) []byte {
		m := hmac.New(sha256.New, []byte(k+purpose))
		for _, p := range parts {
			m.Write(p)
		}
		return m.Sum(nil)
	}
}

var (
	now  = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	good = Claims{Run: "r1", Sandbox: "kept", Class: "lean", Expires: now.Add(time.Minute)}
)

func issue(t *testing.T, c Claims, k string) Ticket {
	t.Helper()
	got, err := Issue(c, key(k))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestVector35_NoSandboxWithoutItsOwnTicket(t *testing.T) {
	with := func(change func(*Claims)) Claims {
		c := good
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		ticket Ticket
		want   Claims
		at     time.Time
		code   string
	}{
		"its own":            {issue(t, good, "k"), good, now, ""},
		"none":               {Ticket{}, good, now, CodeMissing},
		"none, unnamed run":  {Ticket{}, Claims{}, now, CodeMissing},
		"another run's":      {issue(t, with(func(c *Claims) { c.Run = "r2" }), "k"), good, now, CodeRun},
		"of no run":          {issue(t, Claims{Expires: good.Expires}, "k"), Claims{}, now, CodeRun},
		"another sandbox's":  {issue(t, with(func(c *Claims) { c.Sandbox = "other" }), "k"), good, now, CodeSandbox},
		"of no kept sandbox": {issue(t, with(func(c *Claims) { c.Sandbox = "" }), "k"), good, now, CodeSandbox},
		"another pool's":     {issue(t, with(func(c *Claims) { c.Class = "task" }), "k"), good, now, CodePool},
		"expired":            {issue(t, good, "k"), good, good.Expires, CodeExpired},
		"without expiry":     {issue(t, with(func(c *Claims) { c.Expires = time.Time{} }), "k"), good, now, CodeExpired},
		"another store's":    {issue(t, good, "other"), good, now, CodeTampered},
		"other claims": {
			Ticket{claims: issue(t, with(func(c *Claims) { c.Run = "r2" }), "k").claims, seal: issue(t, good, "k").seal},
			with(func(c *Claims) { c.Run = "r2" }), now, CodeTampered,
		},
		"no seal": {Ticket{claims: issue(t, good, "k").claims}, good, now, CodeTampered},
	} {
		err := c.ticket.Check(c.want, c.at, key("k"))
		if c.code == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		r, ok := errors.AsType[*Rejected](err)
		if !ok || !errors.Is(err, ErrRejected) || r.Code != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
}

func TestVector35_EveryChangedByteOfATicketIsNoticed(t *testing.T) {
	text, err := issue(t, good, "k").MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var back Ticket
	if err := back.UnmarshalText(text); err != nil || back.Check(good, now, key("k")) != nil {
		t.Fatalf("the ticket itself: %v", err)
	}
	for i := range text {
		for _, b := range []byte{text[i] ^ 1, text[i] ^ 0x20, 'A', '.'} {
			if b == text[i] {
				continue
			}
			changed := append([]byte{}, text...)
			changed[i] = b
			var read Ticket
			err := read.UnmarshalText(changed)
			if err == nil {
				err = read.Check(good, now, key("k"))
			}
			if !errors.Is(err, ErrRejected) {
				t.Errorf("byte %d as %q: %v", i, b, err)
			}
		}
	}
	for _, bad := range []string{"", "sbx-ticket-v1", "sbx-ticket-v1..", "sbx-ticket-v2." + string(text[len(purpose)+1:])} {
		if err := new(Ticket).UnmarshalText([]byte(bad)); !errors.Is(err, ErrRejected) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := (Ticket{}).MarshalText(); err == nil {
		t.Error("no ticket has a text")
	}
}
