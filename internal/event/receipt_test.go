package event

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestReceiptHasNoNullLists(t *testing.T) {
	got, err := json.Marshal(Receipt{Run: "r1", Swept: []Swept{{Run: "r0"}}, Attestation: &Attestation{}})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "null") {
		t.Errorf("null in %s", got)
	}
	var back Receipt
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	if back.Schema != ReceiptSchema || back.Run != "r1" || back.Swept[0].Run != "r0" {
		t.Errorf("read back: %+v", back)
	}
}

func TestRefusalIsAnErrorWithItsCause(t *testing.T) {
	var err error = &Refusal{Kind: RefusedSandbox, Name: "k", Message: "opening the tree", Cause: fs.ErrPermission}
	if !errors.Is(err, fs.ErrPermission) || err.Error() != "opening the tree" {
		t.Errorf("refusal: %v", err)
	}
	text, _ := json.Marshal(err)
	if want := `{"_tag":"sandbox-unavailable","name":"k","message":"opening the tree"}`; string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
}
