package egress

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"
)

// GitUploadPack is the git service that reads.
const GitUploadPack = "upload-pack"

// judgeGit demands a well-formed request of git-upload-pack: wants and haves of
// protocol versions 0 and 1, or ls-refs and fetch commands of version 2
// (gitprotocol-pack, gitprotocol-v2).
func judgeGit(body []byte, contentType, service string) error {
	if service != GitUploadPack {
		return fmt.Errorf("git service %s is not known", service)
	}
	if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != "application/x-git-upload-pack-request" {
		return errors.New("the content type is not that of git-upload-pack")
	}
	lines, err := packetLines(body)
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		return errors.New("the request is empty")
	}
	if bytes.HasPrefix(lines[0].data, []byte("command=")) {
		return judgeCommands(lines)
	}
	return judgeWants(lines)
}

type packet struct {
	data  []byte // nil for flush, delimiter and end packets
	flush bool
}

// packetLines cuts a body into pkt-lines (gitprotocol-common).
func packetLines(body []byte) ([]packet, error) {
	var lines []packet
	for len(body) > 0 {
		if len(body) < 4 {
			return nil, errors.New("a git packet is cut short")
		}
		size, err := strconv.ParseUint(string(body[:4]), 16, 16)
		switch {
		case err != nil || size == 3 || size > 65520:
			return nil, errors.New("a git packet has a malformed length")
		case size < 4:
			lines, body = append(lines, packet{flush: size == 0}), body[4:]
		case size > uint64(len(body)):
			return nil, errors.New("a git packet is cut short")
		default:
			lines, body = append(lines, packet{data: body[4:size:size]}), body[size:]
		}
	}
	return lines, nil
}

// judgeCommands checks each command of a version 2 body: commands begin the body
// and follow flush packets.
func judgeCommands(lines []packet) error {
	start := true
	for _, line := range lines {
		command, isCommand := bytes.CutPrefix(line.data, []byte("command="))
		switch {
		case isCommand != (start && line.data != nil):
			return errors.New("a git command is not where one belongs")
		case isCommand && !slices.Contains(readCommands, strings.TrimSuffix(string(command), "\n")):
			return errors.New("only the git commands ls-refs and fetch are granted")
		}
		start = line.flush
	}
	return nil
}

var readCommands = []string{"ls-refs", "fetch"}

// wantWords begin the lines of a version 0 or 1 request.
var wantWords = []string{"want", "have", "shallow", "deepen", "deepen-since", "deepen-not", "deepen-relative", "filter", "done"}

func judgeWants(lines []packet) error {
	for _, line := range lines {
		if line.data == nil {
			continue
		}
		word, _, _ := strings.Cut(strings.TrimSuffix(string(line.data), "\n"), " ")
		if !slices.Contains(wantWords, word) {
			return errors.New("only wants and haves are granted")
		}
	}
	return nil
}
