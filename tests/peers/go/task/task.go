// Package task is what each client's program is asked to do, and what it has to tell.
//
// The program is called as `PROGRAM roundtrip BOOTSTRAP TOPIC CODEC` with the task as JSON on stdin, or
// as `PROGRAM exchange` with a list of Exchange, or as `PROGRAM transactions` with Transactions; the
// answer goes as JSON to stdout. The test that runs it knows what has to be in it.
package task

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// Patience is how long brokers on a busy machine may take for anything.
const Patience = 2 * time.Minute

// Record is one record, to be written or as it was read.
type Record struct {
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
	Timestamp int64       `json:"timestamp"`
	Key       *string     `json:"key"`
	Value     *string     `json:"value"`
	Headers   [][2]string `json:"headers"`
}

// Task is what to do with a topic that is to be created.
type Task struct {
	Bootstrap  []string `json:"-"`
	Topic      string   `json:"-"`
	Codec      string   `json:"-"`
	Partitions int32    `json:"partitions"`
	Replicas   int16    `json:"replicas"`
	Records    []Record `json:"records"`
	Time       int64    `json:"time"`
	Keep       int64    `json:"keep"`
}

// Group is the name of the consumer group.
func (t Task) Group() string { return t.Topic + "-group" }

// Offsets are offsets by partition.
type Offsets map[int32]int64

// Shares are the partitions of each member of a group that reads one topic.
type Shares [][]int32

// AreFair says whether so many members have one partition each.
func (s Shares) AreFair(members int) bool {
	for _, share := range s {
		if len(share) != 1 {
			return false
		}
	}
	return len(s) == members
}

// Answer is what the brokers said.
type Answer struct {
	Read      []Record `json:"read"`
	Group     []Record `json:"group"`
	Shares    Shares   `json:"shares"`
	State     string   `json:"state"`
	Committed Offsets  `json:"committed"`
	Starts    Offsets  `json:"starts"`
	Ends      Offsets  `json:"ends"`
	Found     Offsets  `json:"found"`
	Retention string   `json:"retention"`
	Kept      Offsets  `json:"kept"`
	Groups    int      `json:"groups"`
}

// Run does what the command line says with one client.
func Run(
	roundtrip func(Task) Answer, exchange func(Exchange) ([]string, error), refusals Refusals,
	transact func(Transactions) TransactionsOutcome,
) {
	if len(os.Args) == 2 && os.Args[1] == "exchange" {
		exchangeAll(exchange, refusals)
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "transactions" && transact != nil {
		transactAll(transact)
		return
	}
	if len(os.Args) != 5 || os.Args[1] != "roundtrip" {
		Check(fmt.Errorf("usage: %s roundtrip BOOTSTRAP TOPIC CODEC, exchange, or transactions", os.Args[0]))
	}
	task := Task{Bootstrap: strings.Split(os.Args[2], ","), Topic: os.Args[3], Codec: os.Args[4]}
	Check(json.NewDecoder(os.Stdin).Decode(&task))
	Check(json.NewEncoder(os.Stdout).Encode(roundtrip(task)))
}

// Check ends the program on an error. The panic tells where it was.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

// Must gives a value that came without an error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Eventually waits until something holds; the broker asked may hear of a change after others.
func Eventually(claim string, holds func() bool) {
	for until := time.Now().Add(Patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			Check(fmt.Errorf("not in time: %s", claim))
		}
	}
}

// Bytes are those of a text; of none there are none.
func Bytes(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

// Text is the opposite of Bytes.
func Text(bytes []byte) *string {
	if bytes == nil {
		return nil
	}
	text := string(bytes)
	return &text
}
