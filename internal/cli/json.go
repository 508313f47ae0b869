package cli

import (
	"encoding/json"
	"fmt"
)

// printJSON writes the value as one indented object and nothing else.
func (e *environment) printJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	e.out.Raw(string(text) + "\n")
	return nil
}
