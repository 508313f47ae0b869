package egress

// JudgeBody judges a whole request body, as received, against the rule's
// assertions. It returns CodeAllowed, or the code of the refusal and what is
// wrong in a few words without any of the body's own bytes.
func (r *Rule) JudgeBody(body []byte, contentEncoding, contentType string) (Code, string) {
	plain, err := decodeBody(body, contentEncoding, r.MaxBody)
	if err != nil {
		return bodyCode(err), err.Error()
	}
	if len(r.Body.JSON) > 0 {
		if err := judgeJSON(plain, contentType, r.Body.JSON); err != nil {
			return CodeBodyAssertion, err.Error()
		}
	}
	if r.Body.Git != "" {
		if err := judgeGit(plain, contentType, r.Body.Git); err != nil {
			return CodeBodyAssertion, err.Error()
		}
	}
	return CodeAllowed, ""
}
