package sbxtest

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// User says who runs a command in the lab.
type User uint8

// AsUser is an ordinary user without capabilities or supplementary groups;
// AsRoot is uid 0 of the machine.
const (
	AsUser User = iota
	AsRoot
)

// String names the user as a subtest does.
func (u User) String() string {
	if u == AsRoot {
		return "root"
	}
	return "user"
}

// Everyone is all users that the test process can run commands as.
func Everyone() []User {
	if os.Geteuid() == 0 {
		return []User{AsUser, AsRoot}
	}
	return []User{AsUser}
}

// ordinaryID is the uid and gid of AsUser where root can choose one: below the
// ranges that /etc/subuid hands out, above those of real people.
const ordinaryID = 61234

// account is a user as the lab's /etc/passwd has it.
type account struct {
	name     string
	uid, gid int
	home     string
}

// accountOf returns the account of u whose home is below dir.
func accountOf(u User, dir string) (account, error) {
	a := account{name: "sbxlab", uid: ordinaryID, gid: ordinaryID, home: dir + "/home"}
	switch {
	case u == AsRoot && os.Geteuid() != 0:
		return account{}, fmt.Errorf("running as root: the tests were started by uid %d; range over Everyone()", os.Geteuid())
	case u == AsRoot:
		a = account{name: "root", home: dir + "/root"}
	case os.Geteuid() != 0:
		a.uid, a.gid = os.Getuid(), os.Getgid()
		if known, err := user.LookupId(strconv.Itoa(a.uid)); err == nil {
			a.name = known.Username
		}
	}
	return a, nil
}

// credential is nil where the test process already is that user.
func (a account) credential() *syscall.Credential {
	if os.Geteuid() == a.uid {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// inPasswd returns the text of a passwd file in which a stands once.
func (a account) inPasswd(passwd string) string {
	var kept []string
	for line := range strings.Lines(passwd) {
		fields := strings.Split(line, ":")
		if fields[0] != a.name && (len(fields) < 3 || fields[2] != strconv.Itoa(a.uid)) {
			kept = append(kept, line)
		}
	}
	line := fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", a.name, a.uid, a.gid, a.home)
	return line + strings.Join(kept, "")
}
