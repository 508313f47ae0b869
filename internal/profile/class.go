package profile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/grant"
)

func (d *profileDoc) buildClass(p *Profile) error {
	if name := class.Name(d.Class); d.Class != "" && !name.Valid() {
		return unknownName("class", d.Class, class.Names())
	}
	p.Class = class.Name(d.Class)
	for _, name := range d.Require {
		if !class.Limit(name).Valid() {
			return unknownName("require", name, class.LimitNames())
		}
		p.Require = append(p.Require, class.Limit(name))
	}
	slices.Sort(p.Require)
	p.Require = slices.Compact(p.Require)
	return nil
}

func unknownName(what, name string, known []string) error {
	if near := Nearest(name, known); near != "" {
		return fmt.Errorf("%s: there is no %s (did you mean %s?)", what, quote(name), near)
	}
	return fmt.Errorf("%s: there is no %s (known: %s)", what, quote(name), strings.Join(known, ", "))
}

// addClass joins the classes of profiles: those that name one have to agree.
func addClass(spec *grant.Spec, p Profile) error {
	switch {
	case p.Class == "":
	case spec.Class != "" && spec.Class != p.Class:
		return &Refusal{
			Code: CodeBadGrant, Subject: p.Name,
			Detail: fmt.Sprintf("the selected profiles want different classes: %s is of class %s, another of class %s", p.Name, p.Class, spec.Class),
		}
	default:
		spec.Class = p.Class
	}
	spec.Require = append(spec.Require, p.Require...)
	slices.Sort(spec.Require)
	spec.Require = slices.Compact(spec.Require)
	return nil
}

// class reports what changed for the machine that runs go on, not for requests.
func (d *differ) class(before, after Profile) {
	switch {
	case before.Class == after.Class:
	case after.Class.UserNamespaces() && !before.Class.UserNamespaces():
		d.add(ChangeMaybe, "runs are of the class %s, which may make user namespaces inside", after.Class)
	default:
		d.add(ChangeNote, "the class of runs changed from %s to %s", orDefault(before.Class), orDefault(after.Class))
	}
	for _, limit := range before.Require {
		if !slices.Contains(after.Require, limit) {
			d.add(ChangeMaybe, "runs no longer need a limit of %s", limit)
		}
	}
	for _, limit := range after.Require {
		if !slices.Contains(before.Require, limit) {
			d.add(ChangeImpossible, "runs need a limit of %s", limit)
		}
	}
}

func orDefault(name class.Name) string {
	if name == "" {
		return "the operator's default"
	}
	return string(name)
}
