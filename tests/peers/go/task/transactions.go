package task

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"
)

// Transactions are what to do with topics that exist: `transact` in
// tests/support/transactional_steps.py tells it in Python.
type Transactions struct {
	Bootstrap     []string `json:"bootstrap"`
	Prefix        string   `json:"prefix"`
	Partitions    int32    `json:"partitions"`
	SourceRecords int      `json:"sourceRecords"`
	LateMs        int      `json:"lateMs"`
}

// Name is that of a topic, a group, or a transactional id.
func (t Transactions) Name(part string) string { return t.Prefix + "-" + part }

// Late is the timeout of the transaction that the coordinator has to abort.
func (t Transactions) Late() time.Duration { return time.Duration(t.LateMs) * time.Millisecond }

// Message is one value, and the partition that it goes to.
type Message struct {
	Text      string
	Partition int32
}

// Ends are values of transactions, and whether each one is to be committed.
func (t Transactions) Ends() []End {
	return []End{
		{t.values("committed", 4), true},
		{t.values("aborted", 4), false},
		{t.values("end", int(t.Partitions)), true},
	}
}

// End is one transaction.
type End struct {
	Values []Message
	Commit bool
}

func (t Transactions) values(name string, count int) []Message {
	all := []Message{}
	for number := 0; number < count; number++ {
		all = append(all, Message{fmt.Sprintf("%s %d", name, number), int32(number) % t.Partitions})
	}
	return all
}

// Last are the values with which the topic of Ends ends.
func (t Transactions) Last() []string { return Texts(t.values("end", int(t.Partitions))) }

// Copies are what becomes of consumed values.
func Copies(found []Message, name string) []Message {
	all := []Message{}
	for _, one := range found {
		all = append(all, Message{name + one.Text, one.Partition})
	}
	return all
}

// Texts are the values without partitions.
func Texts(found []Message) []string {
	all := []string{}
	for _, one := range found {
		all = append(all, one.Text)
	}
	return all
}

// Have says whether all of the texts are among the values.
func Have(found []Message, texts []string) bool {
	all := map[string]bool{}
	for _, one := range found {
		all[one.Text] = true
	}
	for _, text := range texts {
		if !all[text] {
			return false
		}
	}
	return true
}

// AreSet says whether a group has committed all of the offsets.
func (o Offsets) AreSet() bool {
	for _, offset := range o {
		if offset < 0 {
			return false
		}
	}
	return true
}

// TransactionsOutcome is what the application saw.
type TransactionsOutcome struct {
	ReadCommitted   []string `json:"read_committed"`
	ReadUncommitted []string `json:"read_uncommitted"`
	Before          Offsets  `json:"before"`
	After           Offsets  `json:"after"`
	LateRead        []string `json:"late_read"`
	Fenced          string   `json:"fenced"`
	Late            string   `json:"late"`
}

func transactAll(transact func(Transactions) TransactionsOutcome) {
	var task Transactions
	Check(json.NewDecoder(os.Stdin).Decode(&task))
	outcome := transact(task)
	sort.Strings(outcome.ReadCommitted)
	sort.Strings(outcome.ReadUncommitted)
	Check(json.NewEncoder(os.Stdout).Encode(outcome))
}
